"""A model compared with the checklist of the one before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from day0.artifacts.operators import OperatorReport
from day0.errors import InputError
from flows.commands.operators import command
from tasks.operators import scan as scan_module
from tasks.operators.checklist import checklist_of, news_since, read_checklist, write_checklist
from tasks.operators.records import CapturedCall, CapturedOperator, TensorSpec
from tasks.operators.scan import judge
from tests.operators.captures import listed, make_capture, settings

OWN = ("aten::mm", "aten::mul.Tensor", "aten::topk")


def typed(name: str, *dtypes: str) -> CapturedOperator:
    calls = tuple(
        CapturedCall(inputs=(TensorSpec(dtype, (2,), (1,)),), dtype=dtype, calls=1, flops=1.0, bytes=4.0)
        for dtype in dtypes
    )
    return CapturedOperator(name=name, calls=len(calls), flops=1.0, bytes=4.0, by_signature=calls)


def report_of(model: str, *operators: Any) -> OperatorReport:
    return judge({"model_type": model}, settings(listed(*OWN)), make_capture(*operators))


BEFORE = report_of("old", typed("aten::mm", "bfloat16"), "aten::view")


def test_new_operators_are_told_apart_by_whether_they_have_to_be_written(tmp_path: Path) -> None:
    write_checklist(tmp_path / "old.json", BEFORE)
    now = report_of("new", typed("aten::mm", "bfloat16", "float8_e4m3fn"), "aten::topk", "vllm::x", "aten::cumsum")
    news = news_since(now, read_checklist(tmp_path / "old.json"))
    assert news.against == "old"
    assert news.there == ("aten::topk",)
    assert {gap.name: gap.work for gap in news.operators} == {"vllm::x": "other", "aten::cumsum": "reduction"}
    assert news.work == {"other": 1, "reduction": 1}
    assert news.dtypes == {"aten::mm": ("float8_e4m3fn",)}
    assert news.gone == ("aten::view",)


def test_a_model_has_no_news_for_itself() -> None:
    news = news_since(BEFORE, checklist_of(BEFORE))
    assert (news.operators, news.there, news.dtypes, news.gone, news.work) == ((), (), {}, (), {})


def test_nothing_is_no_checklist(tmp_path: Path) -> None:
    empty = BEFORE.model_copy(update={"phases": {}})
    with pytest.raises(InputError, match="no operators"):
        write_checklist(tmp_path / "empty.json", empty)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"model": "x"}', '{"format": "another", "model": "x", "target": "t", "operators": {"a::b": {}}}',
     '{"model": "x", "target": "t", "operators": {}}'],
)  # fmt: skip
def test_what_is_no_checklist_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "list.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"list\.json is no operator checklist"):
        read_checklist(file)


def test_the_command_writes_a_checklist_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, checklist = tmp_path / "config.json", tmp_path / "old.json"
    model.write_text('{"model_type": "old"}')

    def run(*options: str) -> dict[str, Any]:
        result = CliRunner().invoke(command, [str(model), "--target", "cpu", "--no-measure", "--json", *options])
        assert result.exit_code == 0, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    monkeypatch.setattr(scan_module, "run_capture", lambda config, asked: make_capture("aten::mm"))
    assert run("--checklist", str(checklist))["news"] is None
    monkeypatch.setattr(scan_module, "run_capture", lambda config, asked: make_capture("aten::mm", "vllm::x"))
    news = run("--against", str(checklist))["news"]
    assert (news["against"], [gap["name"] for gap in news["operators"]]) == ("old", ["vllm::x"])


def test_a_checklist_that_is_not_there_stops_the_command_before_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "run_capture", lambda config, asked: pytest.fail("traced"))
    model = tmp_path / "config.json"
    model.write_text('{"model_type": "old"}')
    result = CliRunner().invoke(command, [str(model), "--target", "cpu", "--against", str(tmp_path / "none.json")])
    assert isinstance(result.exception, InputError) or "cannot be read" in result.output
