"""What people read of a scan: within the width, all gaps named, nothing said twice."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from rich.console import Console

from day0.artifacts.operators import Correction, OperatorReport
from tasks.operators.records import EXPLICIT, Capture
from tasks.operators.render import MOST_NAMES, show_operators
from tasks.operators.scan import judge
from tasks.operators.settings import OperatorSettings
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
LOOP = REGISTRATIONS | {"aten::_grouped_mm": registered(EXPLICIT)}


def shown(report: OperatorReport, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    show_operators(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def of(asked: OperatorSettings, capture: Capture) -> str:
    return shown(judge(CONFIG, asked, capture))


def test_a_target_with_everything_has_no_list_of_gaps() -> None:
    text = of(settings(dispatcher()), make_capture())
    assert "npu has one kernel each for 100.0% of its time" in text
    assert "gaps of" not in text
    assert "taken apart" not in text
    assert "one kernel each for 80%" not in text


def test_what_is_taken_apart_is_said_with_what_would_be_one_kernel() -> None:
    capture = make_capture("aten::mm", captured("aten::_grouped_mm", 0.0, 300.0), registrations=LOOP)
    text = of(settings(listed("aten::mm", "aten::mm.out")), capture)
    assert "  via aten::mm.out for each group" in text
    assert "npu has one kernel each for 25.0% of its time; takes 75.0% apart into several, which take" in text
    assert "aten::_grouped_mm  composite  75.0% of prefill, 75.0% of decode" in text
    assert "one kernel each for 95% of decode: aten::_grouped_mm" in text
    assert "gaps of" not in text


def test_attention_that_is_taken_apart_names_what_computes() -> None:
    text = of(settings(listed("aten::bmm", *SOFTMAX)), make_capture(ATTENTION))
    assert "via aten::_safe_softmax, aten::bmm" in text


def test_work_that_engines_do_otherwise_is_more_or_less() -> None:
    report = judge(CONFIG, settings(dispatcher()), make_capture())
    corrections = (
        Correction(what="attention", flops=-2e9, reason="why"),
        Correction(what="experts", flops=3e6, reason="?"),
    )
    decode = report.phases["decode"].model_copy(update={"corrections": corrections})
    text = shown(report.model_copy(update={"phases": {"decode": decode}}))
    assert "as engines do it, the work of attention is 2 GFLOP less than here: why" in text
    assert "as engines do it, the work of experts is 3 MFLOP more than here: ?" in text


def test_a_share_is_that_of_its_phase() -> None:
    capture = make_capture("aten::mm", "aten::view")
    decode = (captured("aten::mm"), captured("aten::view", 0, 300.0))
    capture = capture.model_copy(update={"phases": {**capture.phases, "decode": decode}})
    assert "aten::view  missing  50.0% of prefill, 75.0% of decode" in of(settings(listed("aten::mm")), capture)


def test_what_all_gaps_have_in_common_is_said_once_and_each_is_named() -> None:
    names = [f"x::o{i}" for i in range(MOST_NAMES + 5)]
    text = " ".join(of(settings(listed("aten::mm", complete=False)), make_capture(*names)).split())
    assert text.count("not listed, and the list is not complete: run the scan where it can be told") == 1
    assert all(f"{name} unknown" in text for name in sorted(names)[:MOST_NAMES])
    assert f"and with less: {', '.join(sorted(names)[MOST_NAMES:])}" in text
    assert "and 5 more (--json has all)" in text


def test_brackets_of_reasons_are_no_markup() -> None:
    capture = make_capture("aten::mm", notes=("what [red] stands for was taken to be [0, 1]",))
    assert "what [red] stands for was taken to be [0, 1]" in of(settings(listed("aten::mm")), capture)


@pytest.mark.parametrize("native", [False, True])
@how(max_examples=20, deadline=None)
@given(
    times=st.lists(st.one_of(st.none(), st.integers(0, 10**15)), min_size=1, max_size=30),
    width=st.integers(80, 200),
)
def test_no_line_is_wider_than_the_console(native: bool, times: list[int | None], width: int) -> None:
    names = [f"aten::an_operator_with_quite_a_long_name_{i}.overload" for i in range(len(times))]
    capture = make_capture(
        *(captured(name, time, time) for name, time in zip(names, times, strict=True)),
        captured(ATTENTION, 5.0, 5.0),
        notes=("a note that goes on for long " * 5,),
    )
    has = listed(*names, ATTENTION) if native else listed("aten::mm", fallback="CPU")
    text = shown(judge(CONFIG, settings(has), capture), width)
    assert all(len(line) <= width for line in text.splitlines())
