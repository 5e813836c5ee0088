"""Tensors beside quantised weights in the layout of an engine: where they go, and what cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.architecture.family import find_family
from day0.errors import InputError
from tasks.reshard.planner import plan_writes
from tests.models.by_rules import Stored, plain, write_sparse

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip


def linear(tensors: Stored) -> list[str]:
    return [name for name in tensors if "_proj." in name]


def test_per_tensor_scales_of_a_fused_weight_are_kept_apart(tmp_path: Path) -> None:
    """One scale a part, in the order of the parts; those of the KV cache in place of the constants."""
    config = LLAMA | {
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"}
    }
    tensors = dict(plain(config))
    for name in linear(tensors):
        tensors[name] = "F8_E4M3", tensors[name][1]
        tensors[f"{name}_scale"] = tensors[name.replace("weight", "input_scale")] = "F32", ()
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.k_proj.k_scale"] = "F32", ()
        tensors[f"model.layers.{layer}.self_attn.v_proj.v_scale"] = "F32", ()
    plan = plan_writes(write_sparse(tmp_path, config, tensors), find_family(config), "vllm", 2)
    for rank in range(2):
        held = {t.name: t for file in plan.files if file.rank == rank for t in file.tensors}
        attention = "model.layers.1.self_attn"
        for ending in ("weight_scale", "input_scale"):
            scales = held[f"{attention}.qkv_proj.{ending}"]
            assert (scales.dtype, scales.shape) == ("F32", (3,))
            stem = f"{attention}.{{}}_proj.{ending}"
            assert [origin.tensor for origin in scales.origins] == [stem.format(part) for part in "qkv"]
        assert [origin.tensor for origin in held[f"{attention}.attn.k_scale"].origins] == [
            f"{attention}.k_proj.k_scale"
        ]
        assert [origin.tensor for origin in held[f"{attention}.attn.v_scale"].origins] == [
            f"{attention}.v_proj.v_scale"
        ]
        assert [origin.tensor for origin in held[f"{attention}.attn.q_scale"].origins] == [None]
        assert not [name for name in held if "qkv_proj.k_scale" in name or "qkv_proj.v_scale" in name]


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_block_scales_are_written_as_the_engine_has_them(dtype: str, tmp_path: Path) -> None:
    """Qwen3's FP8 releases have them in BF16; layout `hf` leaves them so."""
    config = LLAMA | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    tensors = dict(plain(config))
    for name in linear(tensors):
        out, into = tensors[name][1]
        tensors[name] = "F8_E4M3", (out, into)
        tensors[f"{name}_scale_inv"] = dtype, (out // 128, into // 128)
    checkpoint = write_sparse(tmp_path, config, tensors)
    for layout, name, expected in (
        ("vllm", "model.layers.0.self_attn.qkv_proj.weight_scale_inv", ("F32", (4, 4))),
        ("hf", "model.layers.0.self_attn.q_proj.weight_scale_inv", (dtype, (2, 4))),
    ):
        plan = plan_writes(checkpoint, find_family(config), layout, 2)
        held = {t.name: t for file in plan.files if file.rank == 0 for t in file.tensors}
        assert (held[name].dtype, held[name].shape) == expected
        conversions = {s.conversion.name for listed in plan.streams.values() for s in listed if s.conversion}
        assert conversions == ({"cast"} if layout == "vllm" and dtype == "BF16" else set())


def test_of_shape_records_one_is_kept_for_a_fused_weight(tmp_path: Path) -> None:
    """compressed-tensors (pack-quantized): the engine has one, and overwrites it with each part that it loads."""
    config = LLAMA | {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}
    tensors = dict(plain(config))
    for name in linear(tensors):
        out, into = tensors.pop(name)[1]
        tensors[f"{name}_packed"] = "I32", (out, into // 8)
        tensors[f"{name}_scale"] = "BF16", (out, into // 128)
        tensors[f"{name}_shape"] = "I64", (2,)
    plan = plan_writes(write_sparse(tmp_path, config, tensors), find_family(config), "vllm", 2)
    held = {t.name: t for file in plan.files if file.rank == 1 for t in file.tensors}
    attention = "model.layers.0.self_attn"
    assert held[f"{attention}.qkv_proj.weight_packed"].shape == ((512 + 2 * 256) // 2, 512 // 8)
    record = held[f"{attention}.qkv_proj.weight_shape"]
    assert (record.shape, [origin.tensor for origin in record.origins]) == (
        (2,), [f"{attention}.v_proj.weight_shape"],
    )  # fmt: skip
    dropped = {lost.tensor for lost in plan.dropped}
    assert dropped == {
        f"model.layers.{layer}.{part}_proj.weight_shape"
        for layer in range(2)
        for part in ("self_attn.q", "self_attn.k", "mlp.gate")
    }


def test_awq_is_not_written_in_an_order_that_the_engine_does_not_have(tmp_path: Path) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    tensors = dict(plain(config))
    for name in linear(tensors):
        out, into = tensors.pop(name)[1]
        stem = name.removesuffix("weight")
        tensors[f"{stem}qweight"] = "I32", (into, out // 8)
        tensors[f"{stem}qzeros"] = "I32", (into // 128, out // 8)
        tensors[f"{stem}scales"] = "F16", (into // 128, out)
    checkpoint = write_sparse(tmp_path, config, tensors)
    with pytest.raises(InputError, match=r"_proj\.q\w+'.*AWQ.*layout hf"):
        plan_writes(checkpoint, find_family(config), "vllm", 2)
    plan = plan_writes(checkpoint, find_family(config), "hf", 2)
    held = {t.name: t.shape for file in plan.files if file.rank == 1 for t in file.tensors}
    assert held["model.layers.0.self_attn.q_proj.qweight"] == (512, 256 // 8)
    assert held["model.layers.0.self_attn.k_proj.scales"] == (4, 128)
    assert held["model.layers.0.mlp.down_proj.qweight"] == (512, 512 // 8)
    assert held["model.layers.0.mlp.down_proj.qzeros"] == (4, 512 // 8)
