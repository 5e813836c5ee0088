"""The report of a scan: shares, gaps, verdicts; and a capture that crashes or finds nothing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from day0 import process
from day0.deadline import Deadline
from day0.errors import StageTimeout
from day0.verdict import Verdict
from tasks.operators.scan import judge, scan
from tests.operators.captures import ATTENTION, captured, dispatcher, listed, make_capture, settings

CONFIG = {"model_type": "llama"}


def test_everything_there_passes() -> None:
    report = judge(CONFIG, settings(dispatcher(), "cpu"), make_capture())
    assert report.verdict is Verdict.PASS
    assert report.gaps == ()
    assert [c.reason for c in report.checks if c.name == "coverage"] == ["cpu has all 6 operators"]


def test_gaps_are_named_most_costly_first_and_do_not_fail_the_scan() -> None:
    capture = make_capture(
        captured("aten::mm", moved=1000.0),
        captured("aten::isin.Tensor_Tensor", moved=10.0, calls=500),
        captured("aten::mul.Tensor", moved=300.0),
        captured("vllm::x", flops=None, moved=None),
    )
    report = judge(CONFIG, settings(listed("aten::mm", fallback="CPU")), capture)
    assert [(g.name, g.status) for g in report.gaps] == [
        ("vllm::x", "missing"),
        ("aten::mul.Tensor", "fallback"),
        ("aten::isin.Tensor_Tensor", "fallback"),
    ]
    assert all(g.phases == ("prefill", "decode") and g.advice for g in report.gaps)
    assert report.verdict is Verdict.PASS
    coverage = next(c for c in report.checks if c.name == "coverage")
    assert "3 of 4" in coverage.reason
    assert "missing: vllm::x" in coverage.reason
    assert "run on the CPU instead: aten::mul.Tensor, aten::isin.Tensor_Tensor" in coverage.reason


def test_shares_weigh_work_and_traffic() -> None:
    capture = make_capture(captured("aten::mm", flops=8000.0, moved=10.0), captured("aten::view", flops=0, moved=200.0))
    phase = judge(CONFIG, settings(dispatcher(flops_per_byte=10)), capture).phases["prefill"]
    assert [(o.name, o.share) for o in phase.operators] == [("aten::mm", 0.8), ("aten::view", 0.2)]
    assert (phase.flops, phase.bytes) == (8000.0, 210.0)
    given = settings(dispatcher(flops_per_byte=10)).model_copy(update={"flops_per_byte": 40.0})
    assert judge(CONFIG, given, capture).phases["prefill"].operators[0].share == 0.5


def test_a_cost_without_formula_is_unknown_in_the_report_and_said() -> None:
    report = judge(CONFIG, settings(dispatcher()), make_capture("aten::mm", captured(ATTENTION, None, None)))
    operator = next(o for o in report.phases["decode"].operators if o.name == ATTENTION)
    assert (operator.flops, operator.bytes, operator.share) == (None, None, None)
    assert ATTENTION in report.checks[0].reason


def test_what_is_not_known_is_inconclusive() -> None:
    capture = make_capture(key_readable=False, registrations={})
    report = judge(CONFIG, settings(dispatcher("CUDA"), "h100"), capture)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert {g.status for g in report.gaps} == {"unknown"}


def test_a_vision_tower_was_not_traced() -> None:
    report = judge({"model_type": "x", "vision_config": {}}, settings(dispatcher()), make_capture())
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "vision tower" in report.reason


@pytest.mark.parametrize("phases", [{}, {"prefill": (), "decode": ()}, {"prefill": (captured("aten::mm"),)}])
def test_a_capture_of_nothing_fails(phases: dict[str, object]) -> None:
    report = judge(CONFIG, settings(dispatcher()), make_capture(phases=phases))
    assert report.verdict is Verdict.FAIL
    assert "no operator" in report.reason


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a Python program in the place of the capture process."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    run = process.run

    def use(program: str) -> None:
        monkeypatch.setattr(
            process, "run", lambda command, **given: run([sys.executable, "-c", program, *command[3:]], **given)
        )

    return use


@pytest.mark.parametrize(
    ("program", "said"),
    [("raise MemoryError('no room')", "no room"), ("import os; os.abort()", "code -6")],
)
def test_a_crash_is_a_verdict(child: Callable[[str], None], program: str, said: str) -> None:
    child(program)
    report = scan(CONFIG, settings(dispatcher()))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert said in report.reason


@pytest.mark.parametrize("program", ["pass", "import sys; open(sys.argv[2], 'w').write('{\"phases\": 3')"])
def test_a_capture_without_an_answer_fails(child: Callable[[str], None], program: str) -> None:
    child(program)
    assert scan(CONFIG, settings(dispatcher())).verdict is Verdict.FAIL


def test_a_capture_that_hangs_ends_with_its_stage(child: Callable[[str], None]) -> None:
    child("import time; time.sleep(600)")
    with Deadline("operators", 0.5).running(), pytest.raises(StageTimeout):
        scan(CONFIG, settings(dispatcher()))


def test_a_capture_that_never_ends_is_inconclusive_at_its_own_limit(child: Callable[[str], None]) -> None:
    child("import time; time.sleep(600)")
    report = scan(CONFIG, settings(dispatcher()).model_copy(update={"trace_limit": 0.5}))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reason == "the model could not be traced: it took longer than 0.5 s"


def test_the_request_reaches_the_process(child: Callable[[str], None], tmp_path: Path) -> None:
    answer = make_capture().model_dump_json()
    child(
        "import json, sys; asked = json.load(open(sys.argv[1])); assert asked['prompt'] == 8, asked; "
        f"open(sys.argv[2], 'w').write({answer!r})"
    )
    assert scan(CONFIG, settings(dispatcher(), "cpu")).verdict is Verdict.PASS
