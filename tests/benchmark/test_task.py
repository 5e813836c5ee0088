"""The benchmark of an engine that ends in an accepted kernel: it begins with what smoke was left with, and goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from day0.artifacts.benchmark import BenchmarkReport
from day0.artifacts.service import OfService, Service
from day0.endpoint import Endpoint, EngineDied, LastWords
from day0.engine_kernels import took_out, without_kernels
from day0.verdict import Check, Verdict, follow_up
from tasks.benchmark import task
from tasks.benchmark.settings import load_settings
from tests.recipe.fixtures import evidence, with_kernels

HOW = "engine died during benchmark: engine x ended (exit code 0); its last error line: Fatal Python error: Aborted"


class Engine:
    """A `LiveEngine` that ends where it has one of these kernels."""

    def __init__(self, *deadly: str) -> None:
        self.deadly, self.had = set(deadly), list[list[str]]()

    def endpoint(self, service: Service) -> Endpoint:
        self.had.append([kernel.name for kernel in service.launch.given])
        return Endpoint("http://127.0.0.1:9", "stub")

    def last_words(self) -> LastWords:
        return LastWords(next((name for name in self.had[-1] if name in self.deadly), None))


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The stage on a service with the kernels norm and rotary, with numbers that were not measured."""
    case = evidence()
    service = case.service.model_copy(update={"launch": with_kernels(case.service.launch)})

    def run(engine: Engine, *smoke_without: str) -> tuple[Service, BenchmarkReport]:
        def numbers(*_: Any, **__: Any) -> BenchmarkReport:
            if engine.deadly.intersection(engine.had[-1]):
                raise EngineDied(HOW)
            return BenchmarkReport(
                checks=(Check(name="numbers", verdict=Verdict.PASS, reason="measured"),),
                formulas={}, conditions={}, machine={}, cells=(), roofline=None,
            )  # fmt: skip

        monkeypatch.setattr(task, "run_benchmark", numbers)
        launch = without_kernels(service.launch, smoke_without) if smoke_without else None
        smoke = SimpleNamespace(launch=launch)
        profile = SimpleNamespace(architecture={"vocab_size": 100})
        given: Any = (SimpleNamespace(), profile, SimpleNamespace(), service, smoke, load_settings(), engine)
        return service, task.benchmark(*given)

    monkeypatch.setattr(task, "tree_of", lambda artifact: tmp_path)
    monkeypatch.setattr(task, "workspace", lambda: tmp_path)
    monkeypatch.setattr(task, "usable_token_ids", lambda folder, size: range(size))
    monkeypatch.setattr(task, "_least_bytes", lambda folder, plan, context: None)
    return run


def test_all_is_measured_again_without_the_kernel_that_it_ended_in(measure: Any) -> None:
    engine = Engine("norm")
    service, report = measure(engine)
    assert engine.had == [["norm", "rotary"], ["rotary"]]
    assert report.launch == without_kernels(service.launch, ["norm"])
    assert report.verdict is Verdict.PASS
    assert took_out(service, OfService(checks=report.checks), report)
    assert follow_up(report.checks) == [f"the engine ended in kernel norm for vllm_ir::rms_norm: {HOW}"]


def test_it_begins_with_the_kernels_that_smoke_was_left_with(measure: Any) -> None:
    engine = Engine("norm")
    service, report = measure(engine, "norm")
    assert engine.had == [["rotary"]]
    left = without_kernels(service.launch, ["norm"])
    assert (report.launch, follow_up(report.checks)) == (left, [])
    assert not took_out(service, OfService(checks=report.checks, launch=left), report)
