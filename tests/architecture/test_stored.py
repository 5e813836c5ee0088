"""What is stored: by headers, predicted from configs, and as `reshard --weight-dtype` writes it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from day0.architecture.bound import match_all
from day0.architecture.cuts import Cutter, nbytes
from day0.architecture.quantization import quantization_of
from day0.architecture.slicing import World
from day0.architecture.stored import converted, own_dtype, stored_from_config, stored_from_headers
from day0.architecture.stored_groups import Stored
from day0.architecture.structure import Structure, structure_of
from day0.architecture.weight_dtypes import weight_dtypes
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.conversions import choose_conversions
from tests.architecture.published_configs import CONFIGS, quant_file, read
from tests.models.published import table
from tests.models.published_models import TABLES, config_of, infos

#: Experts a layer of tables of more tensors than these: all are stored alike.
EXPERTS, LARGE = 16, 5_000
UNCONVERTED = {"glm_5.1_w8a8"}  # int8 with offsets, which the reshard refuses


@cache
def model(name: str) -> tuple[dict[str, Any], dict[str, TensorInfo], Structure, Stored]:
    experts = EXPERTS if table(name)["stated"]["tensors"] > LARGE else None
    config, tensors = config_of(name, experts), infos(name, experts)
    structure = structure_of(config, name, tensors)
    return config, tensors, structure, stored_from_headers(structure.family, tensors)


def predicted(config: dict[str, Any], tensors: dict[str, TensorInfo], quantization: dict[str, Any]) -> Stored:
    raw = config | {"quantization_config": quantization}
    return stored_from_config(structure_of(raw, "config.json", tensors), quantization_of(raw, None, "config.json"))


@pytest.mark.parametrize("name", TABLES)
def test_every_element_has_one_role(name: str) -> None:
    _, tensors, structure, stored = model(name)
    assert sum(amount.tensors for amount in stored.by_role.values()) == len(tensors)
    assert stored.elements == sum(amount.elements for amount in stored.by_role.values())
    assert stored.elements == sum(tensor.numel for tensor in tensors.values())
    assert stored.bytes == sum(nbytes(tensor.dtype, tensor.shape) for tensor in tensors.values())
    assert stored.parameters == structure.total


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "fp8", "int8"])
@pytest.mark.parametrize("name", [name for name in TABLES if name not in UNCONVERTED])
def test_conversions_hold_what_the_reshard_writes(name: str, dtype: str) -> None:
    _, tensors, structure, stored = model(name)
    units = choose_conversions(
        match_all(structure.family, tensors), structure.family, dtype, Cutter(World(1, 1, 1), 1, True)
    ).units
    made = converted(stored, structure, dtype)
    assert made.bytes == sum(nbytes(unit.kind.dtype, unit.kind.shape) for unit in units)
    assert sum(group.tensors for group in made.groups) == len(units)
    assert made.parameters == stored.parameters


#: Quantisations that are published with these tables, and that the configs at hand lack.
STATED: dict[str, dict[str, Any]] = {
    "glm_4.5_fp8": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
            }
        },
        "ignore": ["lm_head", "model.layers.92.eh_proj"],
    },
    "llama2-7b-awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
}


@pytest.mark.parametrize("name", STATED)
def test_a_stated_quantisation_predicts_the_published_bytes(name: str) -> None:
    config, tensors, _, stored = model(name)
    if name == "llama2-7b-awq":
        config = config | {"torch_dtype": "float16"}
    made = predicted(config, tensors, STATED[name])
    assert made.bytes == stored.bytes
    assert made.by_role == stored.by_role


def test_mxfp8_predicts_minimax_m3_but_for_a_float32_tensor() -> None:
    config, tensors, _, stored = model("minimax_m3_mxfp8")
    made = predicted(config, tensors, {"quant_method": "mxfp8"})
    patches = next(t for name, t in tensors.items() if name.endswith("patch_embedding.weight"))
    assert stored.bytes - made.bytes == 2 * patches.numel
    assert patches.dtype == "F32"


def test_gpt_oss_takes_as_many_bytes_as_published() -> None:
    """The total_size of the release's index."""
    raw = read(next(path for path in CONFIGS if path.stem == "openai__gpt-oss-120b"))
    stored = stored_from_config(structure_of(raw, "config.json"), quantization_of(raw, None, "config.json"))
    assert stored.bytes == 65_248_815_744
    assert stored.formats("routed_expert") == {"mxfp4": 36 * 128 * (5760 + 2880) * 2880, "bfloat16": 36 * 128 * 8640}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_predicts_as_many_parameters_as_it_has(path: Any) -> None:
    raw, beside = read(path), quant_file(path)
    structure = structure_of(raw, path.name)
    quantization = quantization_of(raw, read(beside) if beside else None, path.name)
    stored = stored_from_config(structure, quantization)
    assert stored.parameters == structure.total
    assert (quantization is None) == (set(stored.formats()) <= {"bfloat16", "float32", "float16"})
    for dtype in weight_dtypes():
        assert converted(stored, structure, dtype).parameters == structure.total


def test_how_values_are_stored_by_rule_and_by_kind() -> None:
    _, _, structure, stored = model("deepseek_v4_flash_0731")
    by_name = {group.rule.name: stored.format_of(group.rule) for group in structure.groups}
    assert by_name["layers.{layer}.ffn.experts.{expert}.w1.weight"] == "mxfp4"
    assert by_name["layers.{layer}.ffn.shared_experts.w1.weight"] == "fp8_block"
    assert by_name["layers.{layer}.attn.attn_sink"] == "float32"
    assert list(stored.formats("routed_expert")) == ["mxfp4"]
    assert sum(stored.formats().values()) == sum(group.parameters for group in stored.groups)


def test_the_format_of_most_layers_is_the_rules() -> None:
    _, tensors, structure, _ = model("qwen3_235b_a22b_instruct_2507_fp8")
    weight = "model.layers.0.self_attn.o_proj.weight"
    mixed = {name: tensor for name, tensor in tensors.items() if name != f"{weight}_scale_inv"}
    mixed[weight] = replace(mixed[weight], dtype="BF16")
    stored = stored_from_headers(structure.family, mixed)
    rule = next(group.rule for group in structure.groups if group.rule.name.endswith("o_proj.weight"))
    assert stored.format_of(rule) == "fp8_block"
    assert stored.formats("attention")["bfloat16"] == 4096 * 8192
    # Scales that are there stay in bfloat16, those of the one weight are made in float32.
    wider = 2 * 32 * 64
    assert converted(stored, structure, "fp8").bytes == model("qwen3_235b_a22b_instruct_2507_fp8")[3].bytes + wider


def test_the_dtype_of_unquantised_weights() -> None:
    assert own_dtype(model("llama2-7b-awq")[3]) == "F16"
    assert own_dtype(model("glm_5.1_w8a8")[3]) == "BF16"
    assert own_dtype(Stored((), "headers")) is None


def test_a_tensor_without_a_rule_is_named() -> None:
    _, tensors, structure, _ = model("qwen3_vl_8b_instruct")
    extra = TensorInfo("model.memory.weight", "BF16", (1,), "model.safetensors", 0, 2)
    with pytest.raises(InputError, match=r"model\.memory\.weight"):
        stored_from_headers(structure.family, {**tensors, extra.name: extra})


def test_an_unknown_weight_dtype_is_refused() -> None:
    _, _, structure, stored = model("qwen3_vl_8b_instruct")
    with pytest.raises(InputError, match="int3"):
        converted(stored, structure, "int3")


def test_blocks_that_nothing_divides_are_refused() -> None:
    config, tensors, _, _ = model("llama2-7b-awq")
    with pytest.raises(InputError, match="blocks of 8 × 48 in model"):
        predicted(config, tensors, {"quant_method": "awq", "bits": 4, "group_size": 48})
