"""The kernels stage: skipped where nothing is missing, else it names what is not met."""

from __future__ import annotations

import json

from click.testing import CliRunner

from day0.verdict import Verdict
from flows.commands.kernels import command
from tasks.kernels.gaps import fill_gaps
from tasks.operators.scan import judge
from tests.operators.captures import dispatcher, listed, make_capture, settings


def test_no_gaps_is_skipped_and_says_so() -> None:
    bundle = fill_gaps(judge({}, settings(dispatcher(), "cpu"), make_capture()))
    assert bundle.verdict is Verdict.SKIPPED
    assert bundle.reason == "cpu lacks none of the 6 operators that the model calls"


def test_gaps_fail_by_name() -> None:
    report = judge({}, settings(listed("aten::mm", "aten::bmm", "aten::view", fallback="CPU")), make_capture())
    bundle = fill_gaps(report)
    assert bundle.verdict is Verdict.FAIL
    assert set(bundle.unmet) == {"aten::mul.Tensor", "aten::isin.Tensor_Tensor"}
    assert "aten::isin.Tensor_Tensor (fallback)" in bundle.reason


def test_an_operator_scan_that_concluded_nothing_is_no_reason_to_skip() -> None:
    for capture in (make_capture(phases={}), make_capture(key_readable=False, registrations={})):
        bundle = fill_gaps(judge({}, settings(dispatcher("CUDA")), capture))
        assert bundle.verdict is Verdict.INCONCLUSIVE


def test_the_command() -> None:
    result = CliRunner().invoke(command, ["list", "--target", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"kernels": []}
    wrong = CliRunner().invoke(command, ["list", "flash", "--target", "cpu", "--json"])
    assert wrong.exit_code == 2
    assert "'flash'" in json.loads(wrong.stdout)["error"]
    assert CliRunner().invoke(command, ["list", "--target", "cpv", "--json"]).exit_code == 2
