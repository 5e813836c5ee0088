"""A position far off, in models that choose experts and in others: what float32 says of it decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.smoke import SmokeReport
from day0.endpoint import Endpoint
from day0.verdict import Verdict
from tasks.smoke.exact import no_relaunch
from tasks.smoke.limits import FLOAT32
from tasks.smoke.routed import SENSITIVE, chooses_experts
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings
from tests.models.families import make_tiny_deepseek_v3, make_tiny_qwen3_moe
from tests.models.tiny import make_tiny_llama
from tests.smoke.server import serving
from tests.smoke.test_exact import Change, reference, settings, shifted

__all__ = ["reference", "settings"]


def one_far_off(path: str, asked: Any, answer: Any) -> Any:
    """A server whose second position of the longest prompt is off by 0.9 nats."""
    entries = answer["choices"][0].get("prompt_logprobs") if isinstance(answer, dict) and "choices" in answer else None
    if entries and len(entries) == 20:
        for value in entries[2].values():
            value["logprob"] -= 0.9
    return answer


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3_moe(tmp_path_factory.mktemp("routed") / "model")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "plain")


def as_it_is(path: str, asked: Any, answer: Any) -> Any:
    return answer


def smoke(model: Path, settings: SmokeSettings, served: Change, at_float32: Change) -> SmokeReport:
    with serving(served) as url, serving(at_float32) as exact_url:
        return run_smoke(Endpoint(url, "stub"), model, settings, relaunch=lambda tokens: Endpoint(exact_url, "stub"))


def verdicts(report: SmokeReport) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in report.checks}


def test_a_choice_by_rounding_is_no_fault_where_float32_has_none(routed: Path, settings: SmokeSettings) -> None:
    report = smoke(routed, settings, one_far_off, as_it_is)
    assert report.verdict is Verdict.PASS, report.reason
    reasons = {c.name: c.reason for c in report.checks}
    assert "more than 2: the choice of experts by rounding" in reasons["parity.prompt_ratio"]
    assert "more than 0.8: the choice of experts by rounding" in reasons["parity.p99_error"]
    assert "experts" not in reasons["parity.mean_error"]


def test_a_fault_at_float32_too_is_one(routed: Path, settings: SmokeSettings) -> None:
    found = verdicts(smoke(routed, settings, one_far_off, one_far_off))
    assert {found[name] for name in (FLOAT32, "parity.ratio", "parity.prompt_ratio")} == {Verdict.FAIL}


def test_without_experts_a_position_far_off_is_a_fault(plain: Path, settings: SmokeSettings) -> None:
    found = verdicts(smoke(plain, settings, one_far_off, as_it_is))
    assert found["parity.prompt_ratio"] is Verdict.FAIL
    assert found[FLOAT32] is Verdict.SKIPPED


def test_where_every_position_is_off_float32_is_not_asked(routed: Path, settings: SmokeSettings) -> None:
    found = verdicts(smoke(routed, settings, shifted(0.4), as_it_is))
    assert (found["parity.median_ratio"], found["parity.ratio"], found[FLOAT32]) == (
        Verdict.FAIL,
        Verdict.FAIL,
        Verdict.SKIPPED,
    )


def test_without_float32_it_cannot_be_told(routed: Path, settings: SmokeSettings) -> None:
    with serving(one_far_off) as url:
        report = run_smoke(Endpoint(url, "stub"), routed, settings, relaunch=no_relaunch)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "without float32 it cannot be told" in report.reason
    assert verdicts(report)["parity.median_ratio"] is Verdict.PASS


def test_sensitive_checks_are_checks(routed: Path, settings: SmokeSettings) -> None:
    assert set(SENSITIVE) < verdicts(smoke(routed, settings, as_it_is, as_it_is)).keys()


@pytest.mark.parametrize(
    ("make", "routes"), [(make_tiny_qwen3_moe, True), (make_tiny_deepseek_v3, True), (make_tiny_llama, False)]
)
def test_models_that_choose_experts(make: Callable[[Path], Path], routes: bool, tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    assert chooses_experts(model) is routes
    (model / "config.json").write_text('{"model_type": "nobody_knows", "num_experts": 8}')
    assert chooses_experts(model) is False
