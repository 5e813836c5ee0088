"""Calls that reach accepted kernels, in whole smokes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.verdict import Verdict
from tasks.smoke.settings import SmokeSettings
from tests.smoke.server import serving
from tests.smoke.whole import model, named, reference, settings, smoke

__all__ = ["model", "reference", "settings"]


def counting(*readings: dict[str, Any] | None) -> Callable[[], list[bytes]]:
    """What an engine's process writes of one kernel: one reading after the other, the last for good; None: nothing."""
    left = list(readings)

    def read() -> list[bytes]:
        now = left.pop(0) if len(left) > 1 else left[0]
        if now is None:
            return []
        use = {"operator": "vllm::silu_and_mul", "kernel": "act", "calls": 0, "fallbacks": 0} | now
        return [json.dumps([use]).encode()]

    return read


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.smoke.kernels.INTERVAL", 0.01)


def test_calls_that_the_requests_brought_to_kernels_are_counted(
    model: Path, settings: SmokeSettings, at_once: None
) -> None:
    # 30 of a warm-up; then it is still counting, and then at rest.
    uses = counting(*({"calls": n} for n in (30, 30, 90, 100)))
    with serving() as url:
        report = smoke(url, model, settings, uses)
    assert named(report, "kernels") == (
        Verdict.PASS, "kernels answered 70 calls (70 act for vllm::silu_and_mul)"
    )  # fmt: skip
    assert "kernels answered 70 calls" in report.reason


def test_a_kernel_that_failed_is_followed_up_where_the_model_is_good(
    model: Path, settings: SmokeSettings, at_once: None
) -> None:
    uses = counting({"fallbacks": 7, "reason": "RuntimeError: no such block"})
    with serving() as url:
        report = smoke(url, model, settings, uses)
    assert report.verdict is Verdict.PASS
    assert "to follow up: kernel act failed 7 calls of vllm::silu_and_mul" in report.reason
    with serving(lambda path, asked, answer: 500 if path.endswith("/chat/completions") else answer) as url:
        report = smoke(url, model, settings, uses)
    assert named(report, "kernels")[0] is Verdict.FAIL


def test_a_plugin_that_was_not_loaded_is_no_pass(model: Path, settings: SmokeSettings, at_once: None) -> None:
    with serving() as url:
        report = smoke(url, model, settings, counting(None))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "their plugin was not loaded" in report.reason
    with serving() as url:
        assert "kernels" not in {check.name for check in smoke(url, model, settings).checks}
