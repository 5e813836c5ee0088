"""Published tensor tables explained to the element and to the byte, and tables that are at odds with their config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from day0.architecture.quantization import quantization_of
from day0.architecture.structure import structure_of
from day0.artifacts.profile import Difference
from day0.safetensors_header import DTYPE_BITS, TensorInfo
from day0.verdict import Check, Verdict
from tasks.profile.differences import CONFIG, HEADERS
from tasks.profile.reconcile import Reconciled, reconcile
from tests.models.published import table
from tests.models.published_models import TABLES, config_of, infos

#: Tables whose config states another quantisation, or none, or another dtype for some tensors: what is said of it.
OTHERWISE = {
    "glm_4.5_fp8": ("routed_expert", "quantised (fp8), and the config states no quantisation"),
    "glm_5.1_w8a8": ("routed_expert", "quantised (int8), and the config states no quantisation"),
    "llama2-7b-awq": ("dense_mlp", "quantised (int4), and the config states no quantisation"),
    "minimax_m3_mxfp8": ("routed_expert", "quantised (mxfp8), and the config states no quantisation"),
    "qwen3.6_35b_a3b": ("norm", "bfloat16, where the config lets expect float32"),
}


#: Of tables of more tensors than these only so many experts a layer are read, but for the largest of all.
LARGE, EXPERTS, LARGEST = 100_000, 32, "kimi_k3"


def reconciled(config: dict[str, Any], tensors: dict[str, TensorInfo]) -> Reconciled:
    structure = structure_of(config, "config.json", tensors)
    alone = structure_of(config, "config.json")
    return reconcile(structure, alone, tensors, quantization_of(config, None, "config.json"))


def nbytes(tensor: TensorInfo) -> int:
    return tensor.numel * DTYPE_BITS[tensor.dtype] // 8


def check(found: Reconciled, name: str) -> Check:
    return next(check for check in found.checks if check.name == name)


@pytest.mark.parametrize("name", TABLES)
def test_a_published_table_is_explained_to_the_element_and_the_byte(name: str) -> None:
    stated = table(name)["stated"]
    experts = EXPERTS if stated["tensors"] > LARGE and name != LARGEST else None
    tensors = infos(name, experts)
    found = reconciled(config_of(name, experts), tensors)
    assert {c.name: c.reason for c in found.checks if c.verdict is not Verdict.PASS} == {}
    elements = check(found, "elements").measured
    assert elements["headers"] == found.stored.elements
    assert experts is not None or elements["headers"] == stated["elements"]
    rows = [row for row in found.differences if row.sources == HEADERS]
    assert elements["parameters"] + sum(row.elements or 0 for row in rows) == elements["headers"]
    assert elements["parameters"] == found.stored.parameters
    held = sum(map(nbytes, tensors.values()))
    assert found.stored.bytes == held
    rows = [row for row in found.differences if row.sources == CONFIG and row.bytes is not None]
    predicted = check(found, "bytes").measured["by_config"]
    assert predicted + sum(row.bytes or 0 for row in rows) == held
    assert all(row.reason for row in found.differences)
    if name in OTHERWISE:
        assert OTHERWISE[name] in {(row.what, row.reason) for row in rows}
    else:
        assert rows == [], "the config and its quantisation predict every tensor"


def row_of(found: Reconciled, what: str) -> Difference:
    return next(row for row in found.differences if row.what == what)


def test_what_deepseek_v3_stores_beside_its_parameters() -> None:
    found = reconciled(config_of("deepseek_v3.1"), infos("deepseek_v3.1"))
    assert found.stored.parameters == 671_026_404_352 + 58 * 256  # the modules' count, and the correction biases
    assert row_of(found, "matrices stored once more").elements == 2 * 129_280 * 7168
    assert row_of(found, "scales").bytes == 4 * row_of(found, "scales").elements  # type: ignore[operator]
    open_parts = [row for row in found.differences if row.sources == CONFIG]
    assert [(row.what, row.elements) for row in open_parts] == [("mtp", 2 * 129_280 * 7168)]


def test_packed_values_are_unpacked_and_tables_are_no_parameters() -> None:
    found = reconciled(config_of("deepseek_v4_flash_0731"), infos("deepseek_v4_flash_0731"))
    packed = 43 * 256 * 3 * 2048 * 4096
    assert row_of(found, "packed values").elements == packed // 2 - packed
    assert row_of(found, "tables of ids").elements == 3 * 129_280 * 6
    assert found.stored.formats()["mxfp4"] == packed + 3 * 256 * 3 * 2048 * 4096


SMALL = "qwen3_235b_a22b_instruct_2507_fp8"
EXPERT = "model.layers.5.mlp.experts.3.up_proj.weight"
NORM = "model.layers.7.input_layernorm.weight"


def changed(**changes: Any) -> Reconciled:
    """A table of few experts with some tensors (dots written `__`) of another shape or dtype, or gone."""
    tensors = infos(SMALL, experts=4)
    for name, change in changes.items():
        key = name.replace("__", ".")
        if change is None:
            del tensors[key]
        else:
            held = tensors.get(key, TensorInfo(key, "BF16", (1,), "model.safetensors", 0, 0))
            tensors[key] = replace(held, **change)
    return reconciled(config_of(SMALL, experts=4) | {"num_experts_per_tok": 2}, tensors)


def failed(found: Reconciled) -> dict[str, str]:
    return {c.name: c.reason for c in found.checks if c.verdict is Verdict.FAIL}


def test_the_small_table_is_sound() -> None:
    found = changed()
    assert [c.verdict for c in found.checks] == [Verdict.PASS] * len(found.checks)


def test_a_missing_tensor_is_named() -> None:
    found = changed(**{EXPERT.replace(".", "__"): None})
    assert list(failed(found)) == ["tensors present"]
    assert f"{EXPERT} is missing" in failed(found)["tensors present"]
    assert check(found, "elements").verdict is Verdict.SKIPPED


def test_many_missing_tensors_are_counted() -> None:
    layer = {f"model.layers.9.mlp.experts.{i}.gate_proj.weight".replace(".", "__"): None for i in range(4)}
    reason = failed(changed(**layer))["tensors present"]
    assert "experts.0.gate_proj.weight is missing" in reason
    assert reason.endswith(" and 1 more")


def test_a_misshapen_tensor_is_named_with_both_shapes() -> None:
    found = changed(**{NORM.replace(".", "__"): {"shape": (4095,)}})
    assert failed(found) == {"shapes": f"{NORM} is [4095], by the config [4096]"}


def test_a_scale_that_fits_no_block_is_named() -> None:
    scale = f"{EXPERT}_scale_inv"
    found = changed(**{scale.replace(".", "__"): {"shape": (12, 31)}})
    assert scale in failed(found)["shapes"]


def test_an_unknown_tensor_is_named() -> None:
    found = changed(model__layers__5__memory__weight={"shape": (8, 8)})
    assert failed(found) == {"tensors explained": "the config does not explain model.layers.5.memory.weight [8, 8]"}


def test_a_layer_too_many_is_named() -> None:
    found = changed(model__layers__94__input_layernorm__weight={"shape": (4096,)})
    assert "model.layers.94.input_layernorm.weight" in failed(found)["tensors explained"]


def test_a_quantised_weight_without_its_scale_is_named() -> None:
    scales = {f"{EXPERT.replace('.3.', f'.{i}.')}_scale_inv".replace(".", "__"): None for i in range(4)}
    name = "model.layers.5.mlp.experts.0.up_proj.weight"
    assert failed(changed(**scales)) == {
        "dtypes": f"{name} is F8_E4M3, and 4 such weights of 4 have no scale beside them"
    }
    one = dict(list(scales.items())[1:2])
    assert failed(changed(**one)) == {"dtypes": f"{name} is F8_E4M3, and 1 such weights of 4 have no scale beside them"}


def test_weights_that_the_config_calls_quantised_and_are_not() -> None:
    tensors = infos(SMALL, experts=4)
    plain = {name: replace(tensor, dtype="BF16") for name, tensor in tensors.items() if not name.endswith("_scale_inv")}
    found = reconciled(config_of(SMALL, experts=4) | {"num_experts_per_tok": 2}, plain)
    assert failed(found) == {}
    assert any("not quantised (bfloat16), where fp8 of the config means fp8_block" in w for w in found.warnings)


def test_a_checkpoint_without_tensors_is_a_failure() -> None:
    config = config_of("meta_llama_3.1_8b_instruct")
    structure = structure_of(config, "config.json")
    found = reconcile(structure, structure, {}, None)
    assert {"tensors present", "bytes"} <= failed(found).keys()
