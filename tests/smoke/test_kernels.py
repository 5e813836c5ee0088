"""The smoke of an engine that ends in an accepted kernel: asked again without it, and what it ended in is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from day0.artifacts.kernels import GivenKernel
from day0.artifacts.service import Service
from day0.artifacts.smoke import SmokeReport
from day0.endpoint import Endpoint, EngineDied, LastWords
from day0.engine_kernels import with_kernels, without_kernels
from day0.verdict import Verdict, follow_up
from tasks.smoke.exact import option
from tasks.smoke.settings import SmokeSettings
from tasks.smoke.task import smoke
from tests.smoke.server import serving
from tests.smoke.test_exact import reference, service_at, settings

__all__ = ["reference", "settings"]

NORM = GivenKernel(name="norm", backend="cpu", places=("vllm_ir::rms_norm",))
ROTARY = GivenKernel(name="rotary", backend="cpu", places=("vllm::rotary_embedding",))
HOW = "engine x ended (exit code 0); its last error line: Fatal Python error: Aborted"


class Deadly:
    """A `LiveEngine` that ends where it has the kernel `norm`: answers are refused first, as its front end does."""

    def __init__(self, sound: str, refusing: str, dtype: str | None, known: bool) -> None:
        self.sound, self.refusing, self.dtype, self.known = sound, refusing, dtype, known
        self.read = -1
        self.had: list[tuple[list[str], str | None]] = []

    def endpoint(self, service: Service) -> Endpoint:
        given = [kernel.name for kernel in service.launch.given]
        dtype = option(service.launch.command, "--dtype")
        if (given, dtype) not in self.had:
            self.had.append((given, dtype))
        if "norm" in given and dtype == self.dtype:
            return Endpoint(self.refusing, "stub", lambda: HOW, lambda: self.counts(given))
        return Endpoint(self.sound, "stub", kernel_uses=(lambda: self.counts(given)) if given else None)

    def counts(self, given: list[str]) -> list[bytes]:
        """Twice the same, before the requests and after."""
        self.read += 1
        return [json.dumps([{"operator": "x", "kernel": name, "calls": self.read // 2} for name in given]).encode()]

    def last_words(self) -> LastWords:
        return LastWords("norm" if self.known else None)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr("tasks.smoke.kernels.INTERVAL", 0.01)
    (tmp_path / "config.json").write_text("{}")
    plain = service_at(tmp_path)
    launch = with_kernels(plain.launch, (NORM, ROTARY), Path("/kernels of it"))
    return plain.model_copy(update={"launch": launch})


@pytest.fixture
def urls() -> Iterator[tuple[str, str]]:
    with serving() as sound, serving(lambda path, asked, answer: 500) as refusing:
        yield sound, refusing


def judged(service: Service, settings: SmokeSettings, engine: Deadly, benchmark: Any = None) -> SmokeReport:
    snapshot: Any = SimpleNamespace(location=service.launch.model_path, digest="d", require_weights=lambda: None)
    return smoke(snapshot, service, benchmark, settings, engine)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_is_asked_again_without_the_kernel_that_it_ended_in(
    service: Service, settings: SmokeSettings, urls: tuple[str, str], dtype: str
) -> None:
    engine = Deadly(*urls, dtype=dtype, known=True)
    report = judged(service, settings, engine)
    assert report.verdict is Verdict.PASS, report.reason
    assert report.launch == without_kernels(service.launch, ["norm"])
    assert engine.had[-2:] == [(["rotary"], "bfloat16"), (["rotary"], "float32")]
    (said,) = follow_up(report.checks)
    assert said == f"the engine ended in kernel norm for vllm_ir::rms_norm: {HOW}"
    assert said in report.reason
    assert "it went on with rotary" in report.reason


def test_where_it_is_not_known_in_which_it_is_asked_without_any(
    service: Service, settings: SmokeSettings, urls: tuple[str, str]
) -> None:
    report = judged(service, settings, Deadly(*urls, dtype="bfloat16", known=False))
    assert report.verdict is Verdict.PASS, report.reason
    assert report.launch == without_kernels(service.launch, ["norm", "rotary"])
    assert "ended with the kernels norm, rotary, and it is not known in which: " in follow_up(report.checks)[0]


def test_an_engine_that_ends_without_kernels_has_died(
    service: Service, settings: SmokeSettings, urls: tuple[str, str]
) -> None:
    class Dead(Deadly):
        def endpoint(self, service: Service) -> Endpoint:
            given = service.launch.given
            return Endpoint(self.refusing, "stub", lambda: f"{HOW} with {len(given)}", None)

    with pytest.raises(EngineDied, match="with 0"):
        judged(service, settings, Dead(*urls, dtype="bfloat16", known=True))


def test_what_the_benchmark_took_out_is_not_asked_with(
    service: Service, settings: SmokeSettings, urls: tuple[str, str]
) -> None:
    left = without_kernels(service.launch, ["norm"])
    engine = Deadly(*urls, dtype="bfloat16", known=True)
    report = judged(service, settings, engine, SimpleNamespace(launch=left))
    assert report.verdict is Verdict.PASS
    assert (report.launch, follow_up(report.checks)) == (left, [])
    assert {tuple(given) for given, _ in engine.had} == {("rotary",)}
