"""The library's modules against the families' rules: the same to the element, or every difference has its reason."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.structure import Structure, structure_of
from day0.verdict import Verdict
from tasks.profile import modules
from tasks.profile.modules import (
    Difference,
    ModuleCount,
    NoModules,
    Parameter,
    Place,
    check_modules,
    count_modules,
    explain,
    stored_total,
)
from tests.architecture.data import DATA, config, read

CONFIGS = sorted(path for path in (DATA / "configs").glob("*.json") if not path.stem.endswith("_hf_quant"))

#: Types that transformers 5.24.0 does not have.
UNKNOWN = {"mimo", "kimi_k3"}

#: The library's totals as others counted them (meta device, transformers 5.24.0), and ours less the library's.
KNOWN: dict[str, tuple[int, dict[str, int]]] = {
    "meta-llama__Meta-Llama-3.1-405B": (405_853_388_800, {}),
    "Qwen__Qwen3-0.6B": (596_049_920, {}),
    "Qwen__Qwen3-235B-A22B": (235_093_634_560, {}),
    "deepseek-ai__DeepSeek-V3": (
        671_026_404_352,
        {
            "multi-token prediction layer 61": 11_610_068_224,
            "model.layers.{layer}.mlp.gate.e_score_correction_bias": 58 * 256,
        },
    ),
    "moonshotai__Kimi-K2-Instruct": (
        1_026_408_209_408,
        {"model.layers.{layer}.mlp.gate.e_score_correction_bias": 60 * 384},
    ),
    "Qwen__Qwen3-Next-80B-A3B-Instruct": (79_674_391_296, {"multi-token prediction": 1_650_471_424}),
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": (401_167_027_200, {"vision": -455_178_240}),
}


def made(raw: dict[str, Any]) -> Structure:
    return structure_of(raw, "config.json")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library in this process: one import for all configs."""
    from tasks.profile import modules_main

    monkeypatch.setattr(modules, "_ask", modules_main.answer)


@pytest.mark.reference
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_published_config_agrees_to_the_element(path: Path) -> None:
    raw = read(path)
    structure = made(raw)
    counted = count_modules(raw, structure)
    if raw["model_type"] in UNKNOWN:
        assert isinstance(counted, NoModules)
        check = check_modules(counted, [])
        assert check.verdict is Verdict.SKIPPED
        assert f"model_type '{raw['model_type']}' is not known to transformers" in check.reason
        return
    assert isinstance(counted, ModuleCount)
    differences = explain(counted, structure, raw)
    assert stored_total(structure) - counted.total == sum(difference.elements for difference in differences)
    assert sum(parameter.elements for parameter in counted.parameters) == counted.total
    check = check_modules(counted, differences)
    assert check.verdict is Verdict.PASS, check.reason
    if path.stem in KNOWN:
        total, expected = KNOWN[path.stem]
        assert counted.total == total
        assert {difference.what: difference.elements for difference in differences} == expected


@pytest.mark.reference
def test_a_process_of_its_own_gives_the_answer() -> None:
    raw = config(tie_word_embeddings=True)
    structure = made(raw)
    counted = count_modules(raw, structure)
    assert isinstance(counted, ModuleCount)
    assert counted.class_name == "LlamaForCausalLM"
    assert counted.total == structure.total
    assert Parameter("model.layers.#.mlp.down_proj.weight", (64, 192), 3) in counted.parameters
    assert counted.by_module["model.layers.#.mlp.down_proj"] == 3 * 64 * 192
    assert explain(counted, structure, raw) == []


@pytest.mark.reference
@pytest.mark.usefixtures("here")
def test_what_the_library_refuses_is_said_in_its_words() -> None:
    raw = config()
    structure = made(raw)
    counted = count_modules({**raw, "rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, structure)
    assert isinstance(counted, NoModules)
    assert "cannot build a 'llama' of this config" in counted.reason


@pytest.mark.reference
@pytest.mark.usefixtures("here")
def test_a_config_that_the_rules_read_otherwise_is_named() -> None:
    raw = config()
    counted = count_modules({**raw, "intermediate_size": 200}, made(raw))
    assert isinstance(counted, ModuleCount)
    differences = explain(counted, made(raw), raw)
    check = check_modules(counted, differences)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert "model.layers.#.mlp.gate_proj.weight: 36,864 here, 38,400 there (-1,536)" in check.reason


def llama_modules(structure: Structure, changed: dict[str, int], where: dict[str, str]) -> ModuleCount:
    """A library that agrees with the rules, but for the counts `changed` and the places `where` (by rule name)."""

    def placed() -> Iterator[tuple[tuple[int, int | None], Place]]:
        for index, group in enumerate(structure.groups):
            for layer in group.layers or (None,):
                place = Place(where.get(group.rule.name, "parameter"), (group.rule.name,))
                yield (index, layer), place

    parameters = tuple(
        Parameter(group.rule.name, (group.elements + changed.get(group.rule.name, 0),), 1)
        for group in structure.groups
        if group.rule.name not in where
    )
    total = sum(parameter.elements for parameter in parameters)
    return ModuleCount("transformers 0", "LlamaForCausalLM", total, parameters, (), dict(placed()))


NORM = "model.norm.weight"


def test_nothing_differs() -> None:
    raw = config()
    counted = llama_modules(made(raw), {}, {})
    differences = explain(counted, made(raw), raw)
    assert differences == []
    assert check_modules(counted, differences).verdict is Verdict.PASS


def test_another_size_is_not_explained() -> None:
    raw = config()
    counted = llama_modules(made(raw), {NORM: 3}, {})
    differences = explain(counted, made(raw), raw)
    assert [(d.elements, d.reason) for d in differences] == [(-3, None)]
    check = check_modules(counted, differences)
    assert check.verdict is Verdict.INCONCLUSIVE
    assert NORM in check.reason


@pytest.mark.parametrize(("where", "explained"), [("buffer", True), ("tied", True), ("absent", False)])
def test_what_has_no_parameter_there(where: str, explained: bool) -> None:
    raw = config()
    counted = llama_modules(made(raw), {}, {NORM: where})
    [difference] = explain(counted, made(raw), raw)
    assert difference.elements == 64
    assert (difference.reason is not None) is explained
    assert check_modules(counted, [difference]).verdict is (Verdict.PASS if explained else Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("raw_has", "explained"), [(False, True), (True, False)])
def test_a_tower_that_only_the_library_has(raw_has: bool, explained: bool) -> None:
    raw = config(vision_config={"hidden_size": 8} if raw_has else None)
    counted = llama_modules(made(config()), {}, {})
    tower = Parameter("model.vision_tower.proj.weight", (8, 8), 2)
    counted = dataclasses.replace(counted, parameters=(*counted.parameters, tower), total=counted.total + 128)
    [difference] = explain(counted, made(config()), raw)
    assert difference.elements == -128
    assert (difference.reason is not None) is explained


def test_a_library_that_counts_nothing_is_no_agreement() -> None:
    counted = ModuleCount("transformers 0", "Empty", 0, (), (), {})
    assert check_modules(counted, []).verdict is Verdict.INCONCLUSIVE


def test_unexplained_differences_are_counted_beyond_the_first() -> None:
    counted = ModuleCount("transformers 0", "Many", 9, (), (), {})
    check = check_modules(counted, [Difference(f"tensor {i}", 1, None) for i in range(5)])
    assert check.reason.endswith("tensor 0 (+1); tensor 1 (+1); tensor 2 (+1) and 2 more")


def test_a_hostile_number_of_layers_is_not_built() -> None:
    structure = made(config())
    structure.family.layers = modules.MOST_LAYERS + 1
    counted = count_modules(config(), structure)
    assert isinstance(counted, NoModules)
    assert counted.verdict is Verdict.INCONCLUSIVE


def test_asking_imports_neither_torch_nor_transformers() -> None:
    heavy = "[m for m in ('torch', 'transformers', 'prefect') if m in sys.modules]"
    code = f"import sys, tasks.profile.modules; print({heavy})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
