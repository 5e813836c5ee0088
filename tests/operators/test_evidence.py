"""What the scan says of measuring: what was run on the device, what was not and why, and which verdict that is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from day0 import process
from day0.deadline import Deadline
from day0.errors import EvidenceMissing, StageTimeout
from day0.target import load_target
from day0.verdict import Verdict
from tasks.operators import evidence as module
from tasks.operators.evidence import Evidence, measured_evidence
from tasks.operators.measure import Measurement, measure
from tasks.operators.records import Measured
from tasks.operators.scan import judge
from tasks.operators.settings import OperatorSettings, operator_settings
from tests.operators.captures import dispatcher, make_capture, settings

CONFIG = {"model_type": "llama"}
NPU = dispatcher("PrivateUse1", device="npu", modules=("torch_npu",))
HERE = settings(NPU).model_copy(update={"hardware": "Ascend910B"})
ABSENT = settings(NPU).model_copy(update={"absent": "torch_npu, which brings npu, is not installed here"})


def found(*measured: Measured, **fields: Any) -> Measurement:
    return Measurement(measured={one.overload: one for one in measured}, **fields)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[Measurement | EvidenceMissing], None]:
    """Put an answer in the place of measuring."""

    def answers(answer: Measurement | EvidenceMissing) -> None:
        def given(*args: Any, **fields: Any) -> Measurement:
            assert (args[1], fields["modules"], fields["limit"]) == ("npu", ("torch_npu",), 600)
            if isinstance(answer, EvidenceMissing):
                raise answer
            return answer

        monkeypatch.setattr(module, "measure", given)

    return answers


def seen(asked: OperatorSettings, **capture: Any) -> tuple[Evidence, Verdict, str]:
    evidence = measured_evidence(asked, make_capture(**capture))
    assert evidence.check is not None
    return evidence, evidence.check.verdict, evidence.check.reason


def test_an_absent_device_is_said_and_is_no_fault_unless_it_was_asked_for() -> None:
    evidence, verdict, reason = seen(ABSENT)
    assert (verdict, reason) == (
        Verdict.SKIPPED,
        "not measured: torch_npu, which brings npu, is not installed here",
    )
    assert evidence.record.why_not == "torch_npu, which brings npu, is not installed here"
    assert seen(ABSENT.model_copy(update={"measure": True}))[1] is Verdict.INCONCLUSIVE
    assert seen(settings(dispatcher()))[2] == "not measured: torch's name of the device of npu is not known"
    assert measured_evidence(HERE.model_copy(update={"measure": False}), make_capture()).check is None


def test_what_is_not_traced_is_not_measured() -> None:
    assert seen(HERE, source="formulas")[1:] == (
        Verdict.SKIPPED,
        "not measured: formulas tell an operator's work, and not the tensors that it is called with",
    )


def test_what_was_seen_is_named_the_worst_first(device: Callable[[Measurement | EvidenceMissing], None]) -> None:
    device(
        found(
            Measured(overload="aten::mm", works=True, detail="right in 5 cases"),
            Measured(overload="aten::mul.Tensor", works=False, wrong=True, detail="1.01 and not 1"),
            Measured(overload="aten::view", works=True, slow=True),
            Measured(overload="aten::isin.Tensor_Tensor", works=False, detail="Could not run"),
            unmeasured={"aten::_to_copy": "an operand is too large"},
        )
    )
    evidence, verdict, reason = seen(HERE)
    assert verdict is Verdict.PASS
    assert reason.startswith(
        "4 operators were run on Ascend910B (npu), and 1 work; wrong: aten::mul.Tensor; "
        "does not run: aten::isin.Tensor_Tensor; slow: aten::view; not measured: "
    )
    assert "aten::_to_copy (an operand is too large)" in reason
    assert "aten::scaled_dot_product_attention (no call of it was recorded)" in reason
    report = judge(CONFIG, HERE, make_capture(), evidence)
    assert report.measurement.outcomes["aten::mul.Tensor"] == "wrong"
    assert report.measurement.details["aten::mul.Tensor"] == "1.01 and not 1"
    gaps = {gap.name: (gap.status, gap.measured, gap.advice) for gap in report.gaps}
    assert gaps["aten::mul.Tensor"][:2] == ("missing", "wrong")
    assert gaps["aten::mul.Tensor"][2].startswith("the device computes it wrongly")
    assert gaps["aten::isin.Tensor_Tensor"][:2] == ("missing", "does not run")
    assert [(gap.name, gap.status, gap.measured) for gap in report.slow] == [("aten::view", "native", "slow")]
    operator = next(o for o in report.phases["prefill"].operators if o.name == "aten::mul.Tensor")
    assert operator.evidence == "measured: on Ascend910B: wrong: 1.01 and not 1"


def test_time_that_was_over_and_a_device_that_answers_nothing_are_inconclusive(
    device: Callable[[Measurement | EvidenceMissing], None],
) -> None:
    device(found(Measured(overload="aten::mm", works=True), out_of_time=True))
    evidence, verdict, _ = seen(HERE)
    assert verdict is Verdict.INCONCLUSIVE
    assert evidence.record.unmeasured["aten::view"] == "the 600 s for measuring were over"
    device(EvidenceMissing("11 of them ended the process"))
    evidence, verdict, reason = seen(HERE)
    assert (verdict, reason) == (Verdict.INCONCLUSIVE, "not measured: 11 of them ended the process")
    assert judge(CONFIG, HERE, make_capture(), evidence).verdict is Verdict.INCONCLUSIVE


def test_whether_the_device_is_here_is_in_the_settings() -> None:
    """And so in the stage's cache key: what a machine without it said is not taken where it is."""
    absent = operator_settings("ascend-910b", load_target("ascend-910b"))
    assert absent.hardware is None
    assert "torch_npu" in absent.absent
    unasked = operator_settings("ascend-910b", load_target("ascend-910b"), measure=False)
    assert (unasked.hardware, unasked.absent) == (None, "")


@pytest.fixture
def slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device on which one operator is right and the next never ends."""
    right = '{"measured": {"overload": "aten::mm", "works": true}, "times": []}'
    program = (
        f'import time; print({right!r}, flush=True); print(\'{{"begin": "aten::mul"}}\', flush=True); time.sleep(600)'
    )
    run = process.run
    monkeypatch.setattr(process, "run", lambda _, **given: run([sys.executable, "-c", program], **given))


@pytest.mark.usefixtures("slow_device")
def test_what_was_measured_until_the_limit_counts() -> None:
    limited = measure(make_capture(calls=[{"overload": "aten::mm"}]), "cpu", limit=1.5)
    assert limited.out_of_time
    assert limited.measured == {"aten::mm": Measured(overload="aten::mm", works=True)}


@pytest.mark.usefixtures("slow_device")
def test_the_stage_s_own_time_is_no_answer() -> None:
    with Deadline("operators", 1.0).running(), pytest.raises(StageTimeout, match="operators took longer"):
        measure(make_capture(calls=[{"overload": "aten::mm"}]), "cpu", limit=60.0)
