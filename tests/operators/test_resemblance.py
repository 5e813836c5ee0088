"""Models whose type the library lacks, traced as one that resembles them: held against their own family's formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.verdict import Verdict
from tasks.operators.corrections import structure_or_none
from tasks.operators.records import Capture, CapturedOperator, Resembling
from tasks.operators.resemblance import differs, resembling
from tasks.operators.scan import scan
from tests.operators.captures import dispatcher, make_capture, settings

CONFIGS = Path(__file__).parents[1] / "data/configs"
PASSES = {"prefill": (8, 0), "decode": (1, 8)}


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


MIMO = config_of("XiaomiMiMo__MiMo-7B-Base")


def test_candidates_are_the_table_s_then_the_language_model_s_own_type() -> None:
    assert [one.model_type for one in resembling(MIMO)] == ["qwen2"]
    assert [one.model_type for one in resembling(config_of("moonshotai__Kimi-K3"))] == ["kimi_linear"]
    unheard = config_of("Qwen__Qwen3-8B") | {"model_type": "unheard_of", "architectures": ["UnheardForCausalLM"]}
    (one,) = resembling(unheard)
    assert one.model_type == "qwen3"
    assert "explains every size" in one.because
    assert resembling({"model_type": ["llama"], "text_config": 3}) == ()


def test_a_likeness_that_does_not_hold_is_named() -> None:
    structure = structure_or_none(MIMO)
    assert structure is not None
    work = CapturedOperator(name="aten::mm", calls=1, flops=1.0, bytes=1.0)
    like = Capture(
        resembles=Resembling(model_type="qwen2", because="a test"),
        layers=36,
        parameters=structure.total,
        phases={"prefill": (work,), "decode": (work,)},
    )
    assert differs(None, like, PASSES) == "no family describes the model to hold it against"
    assert differs(structure, like.model_copy(update={"layers": 35}), PASSES) == "it has 35 layers, and the model 36"
    fewer = differs(structure, like.model_copy(update={"parameters": structure.total - 10**8}), PASSES)
    assert fewer is not None
    assert "parameters" in fewer
    off = differs(structure, like, PASSES)
    assert off is not None
    assert "100.0% off that of the model's family" in off


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "known"),
    [("XiaomiMiMo__MiMo-7B-Base", "qwen2"), ("MiniMaxAI__MiniMax-M3", "minimax_m3_vl_text")],
)
def test_a_model_that_resembles_a_known_one_is_traced_and_stays_inconclusive(name: str, known: str) -> None:
    report = scan(config_of(name), settings(dispatcher(), "cpu"))
    assert report.source == "traced"
    assert report.verdict is Verdict.INCONCLUSIVE
    assert f"traced as a {known}, which it resembles" in report.reason
    assert report.phases["decode"].operators[0].signatures
    assert not [o.name for o in report.phases["decode"].operators if o.flops is None]


@pytest.mark.reference
def test_where_the_likeness_does_not_hold_formulas_tell() -> None:
    report = scan(config_of("moonshotai__Kimi-K3"), settings(dispatcher(), "cpu"))
    assert report.source == "formulas"
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the kimi_linear that it resembles could not be traced" in report.reason


def test_a_capture_of_another_model_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    work = CapturedOperator(name="aten::mm", calls=1, flops=1.0, bytes=1.0)
    other = make_capture(work, resembles=Resembling(model_type="qwen2", because="a test"), layers=35)
    other = other.model_copy(update={"packages": {"transformers": "5"}})
    monkeypatch.setattr("tasks.operators.scan.run_capture", lambda config, asked: other)
    report = scan(MIMO, settings(dispatcher(), "cpu"))
    assert report.source == "formulas"
    assert "it is not taken for the qwen2 that it resembles: it has 35 layers, and the model 36" in report.reason
