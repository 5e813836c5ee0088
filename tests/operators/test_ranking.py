"""Which operators to write first: by time on the target's roofline, and in the order of a first token."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.artifacts.operators import OperatorReport
from day0.config import named_config
from day0.home import PROJECT
from day0.target_operators import TargetOperators
from tasks.operators.ranking import Rates, graph_severity, least_time
from tasks.operators.records import EXPLICIT, CapturedCall, CapturedOperator
from tasks.operators.scan import judge
from tests.operators.captures import (
    ATTENTION,
    REGISTRATIONS,
    SOFTMAX,
    captured,
    dispatcher,
    listed,
    make_capture,
    registered,
    settings,
)

CONFIG = {"model_type": "nobody"}


def coverage_of(report: OperatorReport) -> str:
    return next(check.reason for check in report.checks if check.name == "coverage")


def test_a_call_takes_the_longer_of_computing_and_moving() -> None:
    rates = Rates(10, {"bfloat16": 100.0, "float32": 10.0}, 5.0)
    assert rates.time(captured("aten::mm", 1000.0, 10.0), "bfloat16") == 10.0
    assert rates.time(captured("aten::mm", 1000.0, 10.0), "float32") == 100.0
    assert rates.time(captured("aten::mm", 10.0, 10.0), "bfloat16") == 2.0
    # A dtype that the target has no rate for is computed out to bfloat16.
    assert rates.time(captured("aten::mm", 1000.0, 10.0), "float8_e4m3fn") == 10.0
    assert rates.time(captured("aten::mm", None, 10.0), "bfloat16") is None


def test_calls_of_an_operator_do_not_overlap() -> None:
    """One that computes and one that moves: their times add up, not their work and traffic."""
    calls = (
        CapturedCall(dtype="bfloat16", calls=1, flops=1000.0, bytes=0.0),
        CapturedCall(dtype="bfloat16", calls=1, flops=0.0, bytes=50.0),
    )
    operator = CapturedOperator(name="aten::mm", calls=2, flops=1000.0, bytes=50.0, by_signature=calls)
    assert least_time(operator, Rates(10, {"bfloat16": 100.0}, 5.0)) == 20.0


def test_gaps_go_by_time_and_not_by_count() -> None:
    capture = make_capture(
        captured("aten::mm", 1e6, 10.0, calls=1),
        captured("aten::mul.Tensor", 0.0, 10.0, calls=9000),
        captured("aten::view", 0.0, 100.0),
    )
    asked = settings(listed("aten::view")).model_copy(update={"rates": {"bfloat16": 1e5}, "bandwidth": 100.0})
    report = judge(CONFIG, asked, capture)
    prefill = report.phases["prefill"]
    assert [gap.name for gap in report.gaps] == ["aten::mm", "aten::mul.Tensor"]
    assert prefill.seconds == pytest.approx(10 + 0.1 + 1)
    assert prefill.native == pytest.approx(1 / 11.1)
    assert {r.share: r.operators for r in report.reach if r.phase == "prefill"} == {
        0.8: ("aten::mm",),
        0.95: ("aten::mm",),
        1.0: ("aten::mm", "aten::mul.Tensor"),
    }


def test_all_of_it_needs_what_takes_no_time_and_what_is_not_known_too() -> None:
    capture = make_capture("aten::mm", captured("aten::view", 0, 0), captured("vllm::x", None, None))
    report = judge(CONFIG, settings(listed("aten::mm")), capture)
    by_level = {r.share: r.operators for r in report.reach if r.phase == "decode"}
    assert by_level[0.95] == ()
    assert by_level[1.0] == ("aten::view", "vllm::x")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(0, 100))
def test_no_shorter_list_reaches_a_level(times: list[int], own: int) -> None:
    operators = [captured(f"x::o{i}", 0.0, float(time)) for i, time in enumerate(times)]
    capture = make_capture(captured("aten::mm", 0.0, float(own)), *operators)
    report = judge(CONFIG, settings(listed("aten::mm")), capture)
    whole = own + sum(times)
    for reach in (r for r in report.reach if r.phase == "prefill"):
        chosen = [times[int(name.removeprefix("x::o"))] for name in reach.operators]
        assert own + sum(chosen) >= reach.share * whole - 1e-6
        if reach.share < 1:
            shorter = itertools.combinations(times, len(chosen) - 1) if chosen else ()
            assert all(own + sum(fewer) < reach.share * whole for fewer in shorter)


def test_what_is_lacking_for_a_dtype_is_what_is_called_with_it() -> None:
    """Gaudi multiplies, but not complex numbers: rotary embeddings that use them are a gap, not all multiplications."""
    calls = (
        CapturedCall(dtype="bfloat16", calls=9, flops=0.0, bytes=900.0),
        CapturedCall(dtype="complex64", calls=1, flops=0.0, bytes=30.0),
    )
    mul = CapturedOperator(name="aten::mul.Tensor", calls=10, flops=0.0, bytes=930.0, by_signature=calls)
    operators = named_config(PROJECT / "configs/operators", "gaudi", TargetOperators)
    report = judge(CONFIG, settings(operators), make_capture(mul, captured("aten::mm", 0.0, 70.0), key_readable=False))
    phase = report.phases["decode"]
    found = phase.operators[0]
    assert (found.name, found.status, found.share) == ("aten::mul.Tensor", "fallback", 0.93)
    assert found.lacking == ("complex64",)
    assert found.lacking_share == pytest.approx(0.03)
    assert phase.native == pytest.approx(0.97)
    gap = report.gaps[0]
    assert gap.name == "aten::mul.Tensor"
    assert gap.share == pytest.approx(0.03)
    assert gap.advice.startswith("for complex64 alone: ")
    assert {r.share: r.operators for r in report.reach if r.phase == "decode"} == {
        0.8: (),
        0.95: (),
        1.0: ("aten::mul.Tensor",),
    }
    every = mul.model_copy(update={"by_signature": calls[1:], "bytes": 30.0})
    report = judge(CONFIG, settings(operators), make_capture(every, key_readable=False))
    assert (report.gaps[0].share, report.phases["decode"].operators[0].lacking) == (1.0, ())


LOOP = REGISTRATIONS | {
    "aten::_grouped_mm": registered(EXPLICIT),
    "aten::histc": registered("CPU"),
}


def test_a_product_that_is_only_there_taken_apart_runs_but_not_as_one_kernel() -> None:
    """A grouped product without a kernel is a loop over the experts: no gap, but what matters."""
    calls = ("aten::mm", captured("aten::_grouped_mm", 0.0, 300.0), captured("aten::histc", 0.0, 1.0))
    capture = make_capture(*calls, registrations=LOOP)
    report = judge(CONFIG, settings(listed("aten::mm", "aten::mm.out", fallback="CPU")), capture)
    phase = report.phases["decode"]
    grouped = next(o for o in phase.operators if o.name == "aten::_grouped_mm")
    assert (grouped.status, grouped.via, grouped.apart) == ("composite", "aten::mm.out for each group", True)
    # It reads where each group ends on the host, which no captured graph can hold.
    assert grouped.graph == "breaks"
    assert [gap.name for gap in report.gaps] == ["aten::histc"]
    assert [gap.name for gap in report.apart] == ["aten::_grouped_mm"]
    assert "a kernel of its own may pay" in report.apart[0].advice
    named = "without a kernel of its own, taken apart: aten::_grouped_mm (75% of a phase's time as one kernel)"
    assert named in coverage_of(report)
    assert phase.native == pytest.approx(100 / 401)
    assert phase.composite == pytest.approx(300 / 401)
    assert {r.share: r.operators for r in report.reach if r.phase == "decode"} == {
        0.8: ("aten::_grouped_mm",),
        0.95: ("aten::_grouped_mm",),
        1.0: ("aten::_grouped_mm", "aten::histc"),
    }


def test_a_grouped_product_whose_product_is_lacking_is_a_gap() -> None:
    report = judge(CONFIG, settings(listed("aten::mm")), make_capture("aten::_grouped_mm", registrations=LOOP))
    assert [(gap.name, gap.status) for gap in report.gaps] == [("aten::_grouped_mm", "missing")]
    assert "what it lacks of its parts: aten::mm.out" in report.gaps[0].advice


def test_what_becomes_one_kernel_is_as_good_as_native() -> None:
    report = judge(CONFIG, settings(dispatcher()), make_capture(ATTENTION, "aten::_to_copy"))
    assert {o.status for o in report.phases["decode"].operators} == {"composite"}
    assert (report.phases["decode"].native, report.phases["decode"].composite, report.apart) == (1.0, 0.0, ())
    assert "taken apart" not in coverage_of(report)


def test_a_first_token_needs_operators_in_the_order_of_first_use() -> None:
    report = judge(CONFIG, settings(listed("aten::mm")), make_capture("aten::view", "vllm::x", "aten::mm"))
    assert [(need.name, need.status) for need in report.first_token] == [
        ("aten::view", "missing"),
        ("vllm::x", "missing"),
        ("aten::mm", "native"),
    ]


def test_a_fallback_cannot_be_in_a_graph() -> None:
    assert graph_severity("aten::mm", "native") == "captured"
    assert graph_severity("aten::isin.Tensor_Tensor", "fallback") == "fails"
    assert graph_severity("aten::_local_scalar_dense", "native") == "breaks"
    assert graph_severity("aten::mm", "unknown") == "unknown"


# T17: what a target lacks is named for what it is.


def test_isin_that_runs_on_the_cpu_is_no_pass_for_it() -> None:
    capture = make_capture("aten::mm", "aten::isin.Tensor_Tensor")
    report = judge(CONFIG, settings(listed("aten::mm", fallback="CPU")), capture)
    isin = next(o for o in report.phases["decode"].operators if o.name == "aten::isin.Tensor_Tensor")
    assert (isin.status, isin.via, isin.graph) == ("fallback", "CPU", "fails")
    assert "run on the CPU instead: aten::isin.Tensor_Tensor" in coverage_of(report)
    assert report.phases["decode"].native == 0.5


def test_an_engines_custom_operator_is_missing() -> None:
    for operators in (listed("aten::mm", fallback="CPU"), dispatcher()):
        report = judge(CONFIG, settings(operators), make_capture("aten::mm", "vllm::x"))
        assert [(gap.name, gap.status) for gap in report.gaps] == [("vllm::x", "missing")]


def test_what_torch_takes_apart_is_composite() -> None:
    report = judge(CONFIG, settings(listed("aten::bmm", *SOFTMAX)), make_capture(ATTENTION))
    attention = report.phases["prefill"].operators[0]
    assert (attention.status, attention.via) == ("composite", "aten::_safe_softmax, aten::bmm")
    assert report.gaps == ()


def test_an_operator_of_another_device_is_named_before_anything_is_started() -> None:
    report = judge(CONFIG, settings(dispatcher()), make_capture("aten::mm", "aten::_fused_only_on_cuda"))
    assert [(gap.name, gap.status) for gap in report.gaps] == [("aten::_fused_only_on_cuda", "missing")]
    assert "missing: aten::_fused_only_on_cuda" in coverage_of(report)
