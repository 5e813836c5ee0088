"""The pass at float32: what it finds, and that where it cannot be made nothing passes in its name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from day0.artifacts.service import FirstCompletion, LaunchSpec, Service
from day0.artifacts.smoke import SmokeReport
from day0.endpoint import Endpoint, EngineDied, LastWords
from day0.errors import StageTimeout
from day0.verdict import Check, Verdict
from tasks.smoke import exact
from tasks.smoke.exact import BLOCK, NotPossible, float32_service, option, with_option
from tasks.smoke.limits import FLOAT32
from tasks.smoke.render import show
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings
from tasks.smoke.task import smoke
from tests.smoke.server import serving
from tests.smoke.whole import settings, use_table

__all__ = ["settings"]

COMMAND = [
    "python", "-m", "engine", "--host", "127.0.0.1", "--dtype", "bfloat16", "--kv-cache-memory-bytes", "8192000",
    "--kv-cache-dtype", "auto", "--max-model-len", "8192", "--tensor-parallel-size", "1", "--max-num-seqs", "4",
]  # fmt: skip
Change = Callable[[str, Any, Any], Any]


class TwoEngines:
    """A `LiveEngine` with a server for the service as it is, and another for the one at float32."""

    def __init__(self, served: str, at_float32: str | Exception) -> None:
        self.served, self.at_float32 = served, at_float32
        self.asked: list[Service] = []

    def endpoint(self, service: Service) -> Endpoint:
        """Of the one or the other, by the launch's dtype."""
        self.asked.append(service)
        if option(service.launch.command, "--dtype") != "float32":
            return Endpoint(self.served, "stub")
        if isinstance(self.at_float32, Exception):
            raise self.at_float32
        return Endpoint(self.at_float32, "stub")

    def last_words(self) -> LastWords:
        return LastWords()


@pytest.fixture
def service(tmp_path: Path) -> Service:
    (tmp_path / "config.json").write_text("{}")
    return service_at(tmp_path)


def service_at(model: Path, command: list[str] = COMMAND, memory_bytes: int = 1 << 30, context: int = 8192) -> Service:
    launch = LaunchSpec(
        engine="stub", engine_version="0", runtime="process", environment="/env", lock_digest="0",
        model_path=str(model), served_model_name="stub", command=tuple(command), env={}, memory_bytes=memory_bytes,
        ready_timeout=1,
    )  # fmt: skip
    return Service(
        checks=(Check(name="first_completion", verdict=Verdict.PASS, reason="answered"),),
        launch=launch,
        ready_seconds=1,
        first_completion=FirstCompletion(prompt="p", text="t", tokens=1, seconds=1),
        load_format="auto",
        security={},
        max_model_len=context,
    )


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """At float32 the reference is the stub to 1e-6 nats; its rounding is 0.008 nats."""
    use_table(monkeypatch, 1e-6)


def shifted(by: float) -> Change:
    """A server whose prompt log-probabilities are off by so much."""

    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, dict) and "choices" in answer:
            for entry in answer["choices"][0].get("prompt_logprobs") or []:
                for value in (entry or {}).values():
                    value["logprob"] -= by
        return answer

    return change


def judge(service: Service, settings: SmokeSettings, engine: TwoEngines) -> tuple[SmokeReport, Check]:
    """The stage's function on a model folder and two engines, and its check at float32."""
    snapshot: Any = SimpleNamespace(location=service.launch.model_path, digest="d", require_weights=lambda: None)
    report = smoke(snapshot, service, None, settings, engine)
    return report, next(check for check in report.checks if check.name == FLOAT32)


def test_right_files_pass_at_float32(service: Service, settings: SmokeSettings) -> None:
    with serving() as url, serving() as at_float32:
        engine = TwoEngines(url, at_float32)
        report, check = judge(service, settings, engine)
    assert report.verdict is Verdict.PASS, report.reason
    assert check.verdict is Verdict.PASS
    assert report.exact is not None
    assert report.exact.error.count == check.measured["positions"] == 8 + 19 + 6
    assert report.exact.error.mean < 1e-6
    assert set(report.exact.worst) == {"text", "scored", "chat"}
    assert [option(s.launch.command, "--dtype") for s in engine.asked] == ["bfloat16", "bfloat16", "float32"]
    SmokeReport.from_json(json.loads(json.dumps(report.to_json())))
    out = StringIO()
    show(report, Console(file=out, width=120))
    assert "engine at float32: mean error" in out.getvalue()


def test_fault_below_the_rounding_fails_with_numbers(service: Service, settings: SmokeSettings) -> None:
    """0.004 nats are half the stub's rounding: what is served passes, and float32 tells."""
    with serving(shifted(0.004)) as url:
        report, check = judge(service, settings, TwoEngines(url, url))
    assert [c.name for c in report.checks if c.verdict is Verdict.FAIL] == [FLOAT32]
    assert report.verdict is Verdict.FAIL
    assert report.reason == "mean error in nats, both at float32: 0.004, more than 0.0001"
    assert check.measured["value"] == pytest.approx(0.004, rel=1e-3)
    assert check.measured["threshold"] == 0.0001
    assert check.measured["worst"]["scored"] == pytest.approx(0.004, rel=1e-3)


@pytest.mark.parametrize("error", [EngineDied("it ended: no kernel for float32"), RuntimeError("a fault of day0")])
def test_engine_that_does_not_start_is_inconclusive(
    error: Exception, service: Service, settings: SmokeSettings
) -> None:
    with serving() as url:
        engine = TwoEngines(url, error)
        if isinstance(error, RuntimeError):
            with pytest.raises(RuntimeError, match="a fault of day0"):
                judge(service, settings, engine)
            return
        report, check = judge(service, settings, engine)
    assert report.verdict is check.verdict is Verdict.INCONCLUSIVE
    assert "no kernel for float32" in check.reason
    assert report.exact is None


def test_time_that_is_up_ends_the_stage(service: Service, settings: SmokeSettings) -> None:
    with serving() as url, pytest.raises(StageTimeout):
        judge(service, settings, TwoEngines(url, StageTimeout("smoke: 60 minutes are over")))


def test_engine_that_goes_away_at_float32_is_inconclusive(service: Service, settings: SmokeSettings) -> None:
    with serving() as url:
        _, check = judge(service, settings, TwoEngines(url, "http://127.0.0.1:9"))
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "no engine answers" in check.reason


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (lambda path, asked, answer: 500, Verdict.FAIL, "HTTP 500"),
        (shifted(math.nan), Verdict.FAIL, "nan"),
        (lambda p, q, a: a["choices"][0].pop("prompt_logprobs", None) and a, Verdict.INCONCLUSIVE, "prompt_logprobs"),
    ],
)
def test_bad_answers_at_float32_never_pass(
    change: Change, verdict: Verdict, words: str, service: Service, settings: SmokeSettings
) -> None:
    with serving() as url, serving(change) as at_float32:
        report, check = judge(service, settings, TwoEngines(url, at_float32))
    assert check.verdict is verdict
    assert words in check.reason
    assert report.exact is None


def test_too_little_memory_is_skipped_and_nothing_started(
    service: Service, settings: SmokeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "machine_memory", lambda: 3 << 29)
    with serving() as url:
        engine = TwoEngines(url, RuntimeError("must not be started"))
        report, check = judge(service, settings, engine)
    assert check.verdict is Verdict.SKIPPED
    assert "2.0 GiB at float32" in check.reason
    assert "1.5 GiB" in check.reason
    assert len(engine.asked) == 1
    assert report.verdict is Verdict.PASS


def test_failed_already_is_not_compared_again(service: Service, settings: SmokeSettings) -> None:
    with serving(shifted(0.4)) as url:
        engine = TwoEngines(url, RuntimeError("must not be started"))
        report, check = judge(service, settings, engine)
    assert report.verdict is Verdict.FAIL
    assert check.verdict is Verdict.SKIPPED
    assert "failed already" in check.reason


def test_suite_may_leave_it_out_and_says_so(service: Service, settings: SmokeSettings) -> None:
    with serving() as url:
        engine = TwoEngines(url, RuntimeError("must not be started"))
        _, check = judge(service, settings.model_copy(update={"exact": False}), engine)
    assert check.verdict is Verdict.SKIPPED
    assert "exact: false" in check.reason


def test_without_its_limit_it_is_inconclusive(service: Service, settings: SmokeSettings) -> None:
    limits = settings.thresholds.model_copy(update={"float32_mean_error": None})
    with serving() as url:
        _, check = judge(service, settings.model_copy(update={"thresholds": limits}), TwoEngines(url, url))
    assert check.verdict is Verdict.INCONCLUSIVE


def test_service_at_float32_is_compared_once(service: Service, settings: SmokeSettings) -> None:
    command = [word.replace("bfloat16", "float32") for word in COMMAND]
    with serving() as url:
        engine = TwoEngines("", url)
        report, check = judge(service_at(Path(service.launch.model_path), command), settings, engine)
    assert check.verdict is Verdict.PASS
    assert len(engine.asked) == 1
    assert [c.name for c in report.checks].count(FLOAT32) == 1


def test_launch_at_float32(tmp_path: Path) -> None:
    made = float32_service(service_at(tmp_path), tokens=600)
    command = made.launch.command
    assert option(command, "--dtype") == "float32"
    assert option(command, "--kv-cache-dtype") == "auto"
    assert option(command, "--max-model-len") == str(made.max_model_len) == "768"
    # 1,000 bytes for each position of the context, twice that at float32, and a block for the engine itself
    assert option(command, "--kv-cache-memory-bytes") == str(2000 * (768 + BLOCK))
    assert made.launch.memory_bytes == 2 * ((1 << 30) - 8_192_000) + 2000 * (768 + BLOCK)
    assert option(command, "--max-num-seqs") == "4"


def test_short_context_stays_as_it_is(tmp_path: Path) -> None:
    command = with_option(tuple(COMMAND), "--max-model-len", "512")
    made = float32_service(service_at(tmp_path, list(command), context=512), tokens=600)
    assert option(made.launch.command, "--max-model-len") == "512"
    assert option(made.launch.command, "--kv-cache-memory-bytes") == str(2 * 8_192_000)


def test_cache_of_one_byte_grows_fourfold(tmp_path: Path) -> None:
    command = with_option(tuple(COMMAND), "--kv-cache-dtype", "fp8_e5m2")
    made = float32_service(service_at(tmp_path, list(command)), tokens=600)
    assert option(made.launch.command, "--kv-cache-memory-bytes") == str(4000 * (768 + BLOCK))


@given(st.integers(2, 20_000), st.integers(16, 20_000), st.integers(1 << 20, 1 << 32))
def test_every_prompt_fits(tokens: int, context: int, cache: int) -> None:
    """The context holds what is asked, unless the service's own is shorter; the cache holds it at twice the size."""
    command = with_option(tuple(COMMAND), "--max-model-len", str(context))
    command = with_option(command, "--kv-cache-memory-bytes", str(cache))
    try:
        made = float32_service(service_at(Path("/none"), list(command), context=context), tokens)
    except NotPossible:
        return
    assert made.max_model_len >= min(tokens, context)
    assert option(made.launch.command, "--max-model-len") == str(made.max_model_len)
    held = int(option(made.launch.command, "--kv-cache-memory-bytes") or 0)
    assert held >= 2 * cache * min(tokens, context) / context


@pytest.mark.parametrize(
    "given", [("x", "--dtype", "a"), ("x", "--dtype=a"), ("x",), ("--dtype=b", "x", "--dtype", "a")]
)
def test_an_option_is_set_once(given: tuple[str, ...]) -> None:
    assert with_option(given, "--dtype", "float32") == ("x", "--dtype", "float32")


def test_running_endpoint_is_judged_without_it_and_the_remedy_told(service: Service, settings: SmokeSettings) -> None:
    """As `day0 smoke --endpoint` does: the verdict is that of all other checks."""
    with serving() as url:
        report = run_smoke(Endpoint(url, "stub"), Path(service.launch.model_path), settings)
    check = next(check for check in report.checks if check.name == FLOAT32)
    assert check.verdict is Verdict.SKIPPED
    assert "day0 serve DIR --weight-dtype float32" in check.reason
    assert "--engine-dtype float32" in check.reason
    assert report.verdict is Verdict.PASS
