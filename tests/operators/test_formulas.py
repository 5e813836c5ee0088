"""Operators of models that the library does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.attention.kinds import KINDS
from day0.architecture.structure import structure_of
from day0.architecture.work import CLASSES
from day0.verdict import Verdict
from tasks.operators import formulas
from tasks.operators.formulas import from_formulas, operators_named
from tasks.operators.scan import judge
from tests.operators.captures import dispatcher, listed, make_capture, settings

CONFIGS = Path(__file__).parents[1] / "data/configs"


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def derived(name: str, **fields: Any) -> Any:
    config = config_of(name)
    asked = settings(listed(*sorted(operators_named())))
    unknown = make_capture(phases={}, **fields)
    why = "transformers does not know it"
    return from_formulas(structure_of(config, name), asked, unknown, why), config, asked


def test_every_class_of_work_and_kind_of_attention_has_its_operators() -> None:
    table = formulas._classes()
    assert set(CLASSES) <= set(table)
    assert set(KINDS) <= set(table["attention"])


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("moonshotai__Kimi-K3", {"aten::_grouped_mm", "aten::linalg_solve_triangular", "aten::topk"}),
        ("XiaomiMiMo__MiMo-7B-Base", {"aten::scaled_dot_product_attention", "aten::mm", "aten::silu"}),
    ],
)
def test_a_model_that_the_library_does_not_know_has_its_familys_operators(name: str, operators: set[str]) -> None:
    capture, config, asked = derived(name)
    report = judge(config, asked, capture)
    assert report.source == "formulas"
    assert operators <= {o.name for o in report.phases["decode"].operators}
    # No evidence of what the model calls: not a pass, whatever the target has.
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "transformers does not know it" in report.reason


def test_costs_that_formulas_do_not_tell_are_unknown() -> None:
    capture, _, _ = derived("XiaomiMiMo__MiMo-7B-Base")
    decode = {o.name: o for o in capture.phases["decode"]}
    assert decode["aten::silu"].flops is None
    assert decode["aten::view"].flops == 0
    assert decode["aten::silu"].calls == 36
    # Two FLOPs a parameter that is multiplied.
    assert decode["aten::mm"].flops == pytest.approx(2 * (7_612_618_752 - 151680 * 4096), rel=0.01)


def test_a_model_of_no_family_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.operators import scan

    monkeypatch.setattr(scan, "run_capture", lambda config, asked: make_capture(phases={}, unsupported="not known"))
    report = scan.scan({"model_type": "never_heard_of"}, settings(dispatcher()))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "not known" in report.reason
