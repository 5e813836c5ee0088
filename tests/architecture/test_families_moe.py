"""The large mixtures of experts: every published tensor has its rule, and the parameters are those published."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, match_all
from day0.architecture.family import find_family
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tests.architecture.test_families import ENGINE, config_of, infos
from tests.models.by_rules import rule_tensors
from tests.models.published import expand, published_config, table

#: Sizes of the releases whose config.json is not at hand, as published.
SIZES: dict[str, dict[str, Any]] = {
    "glm_4.5v": {
        "model_type": "glm4v_moe",
        "text_config": {
            "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "attention_bias": True, "vocab_size": 151552,
        },
        "vision_config": {
            "depth": 24, "hidden_size": 1536, "num_heads": 12, "intermediate_size": 10944, "out_hidden_size": 4096,
            "image_size": 336, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
    },
    "glm_4.7_flash": {
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240, "moe_intermediate_size": 1536,
        "num_hidden_layers": 47, "num_attention_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 64,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "vocab_size": 154880,
    },
}  # fmt: skip

#: Parameters of the published tables, packed ones counted as what they hold; without buffers and tables.
TABLES = {
    "deepseek_v3.1": 684_489_845_504,  # 671.03B and the MTP layer, with its copies of embedding and head
    "deepseek_v3.2": 685_355_329_792,
    "deepseek_v4_flash_0731": 304_178_091_454,  # 284.33B and three MTP modules
    "glm_4.5_fp8": 358_337_791_296,
    "glm_4.5v": 107_710_933_120,
    "glm_4.7_flash": 31_221_488_576,
    "glm_5.1_fp8": 753_864_139_008,
    "glm_5.1_w8a8": 755_805_053_184,
    "kimi_k2.5": 1_026_879_376_368,
    "kimi_k2_instruct": 1_026_408_232_448,
    "kimi_k3": 2_779_931_837_184,  # 2.8T
    "minimax_m2.7": 228_689_764_864,
    "minimax_m3_mxfp8": 427_040_140_160,
}

#: The same by a config alone.
PARAMETERS = {
    "deepseek-ai__DeepSeek-R1": 684_489_845_504,
    "deepseek-ai__DeepSeek-V3": 684_489_845_504,
    "nvidia__DeepSeek-V3.1-NVFP4": 684_489_845_504,
    "nvidia__DeepSeek-V3.2-NVFP4": 685_355_329_792,
    "nvidia__DeepSeek-V4-Flash-NVFP4": 284_332_240_471,
    "sgl-project__DeepSeek-V4-Flash-FP8": 284_332_240_471,
    "zai-org__GLM-5": 755_767_304_448,
    "zai-org__GLM-5-FP8": 755_767_304_448,
    "nvidia__GLM-5-NVFP4": 755_767_304_448,
    "nvidia__GLM-5.1-NVFP4": 755_767_304_448,
    "nvidia__Kimi-K2.5-NVFP4": 1_026_879_376_368,
    "nvidia__Kimi-K2.6-NVFP4": 1_026_879_376_368,
    "MiniMaxAI__MiniMax-M2.5": 228_689_764_864,
    "nvidia__MiniMax-M2.5-NVFP4": 228_689_764_864,
    "nvidia__MiniMax-M2.7-NVFP4": 228_689_764_864,
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_940_288,
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 31_577_940_288,
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": 549_308_993_536,
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8": 549_308_993_536,
    "nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": 549_308_993_536,
    "nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": 31_577_940_288,
    "nvidia__Nemotron-H-56B-Base-8K": 56_324_350_464,
}


def published(name: str) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    """A release's config and all of its tensors."""
    rows = table(name)["tensors"]
    tensors = [(key, row["dtype"], tuple(row["shape"])) for row in rows for key in expand(row["name"])]
    return published_config(name) or SIZES[name], infos(tensors)


def bound_to(config: dict[str, Any], tensors: dict[str, TensorInfo] | None = None) -> BoundFamily:
    return bind(find_family(config), config, tensors)


@pytest.mark.parametrize(("name", "parameters"), TABLES.items())
def test_all_tensors_of_a_release_have_their_rules(name: str, parameters: int) -> None:
    config, tensors = published(name)
    bound = bound_to(config, tensors)
    matches = match_all(bound, tensors)
    assert [match.tensor.name for match in matches] == list(tensors)
    held = [match for match in matches if match.companion is None or match.companion.role == "packed"]
    assert sum(math.prod(match.rule.shape) for match in held if match.rule.rule.kind != "buffer") == parameters


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameters_by_the_config_alone(name: str, parameters: int) -> None:
    tensors = rule_tensors(bound_to(config_of(name)))
    assert sum(math.prod(shape) for rule, shape in tensors.values() if rule.rule.kind != "buffer") == parameters


@pytest.mark.parametrize("name", ["glm_4.7_flash", "glm_4.5v"])
def test_a_missing_tensor_and_one_too_many_are_named(name: str) -> None:
    config, tensors = published(name)
    needed = [key for key in tensors if ".layers.47." not in key]
    for lost in needed[:: len(needed) // 6]:
        rest = {key: tensor for key, tensor in tensors.items() if key != lost}
        with pytest.raises(InputError) as error:
            match_all(bound_to(config, rest), rest)
        assert repr(lost) in str(error.value)
    inside = next(key for key in tensors if ".layers.3.input_layernorm" in key)
    more = tensors | infos([(inside.replace(".3.", ".99."), "BF16", tensors[inside].shape)])
    with pytest.raises(InputError, match=r"layers\.99\.input_layernorm"):
        match_all(bound_to(config, more), more)


@pytest.mark.parametrize(("name", "layer"), [("glm_4.7_flash", ".layers.47."), ("glm_4.5_fp8", ".layers.92.")])
def test_multi_token_prediction_is_there_whole_or_not_at_all(name: str, layer: str) -> None:
    config, tensors = published(name)
    without = {key: tensor for key, tensor in tensors.items() if layer not in key}
    assert len(match_all(bound_to(config, without), without)) == len(without) < len(tensors)
    lost = f"model{layer}self_attn.o_proj.weight"
    partly = {key: tensor for key, tensor in tensors.items() if key != lost}
    with pytest.raises(InputError, match=lost.replace(".", r"\.")):
        match_all(bound_to(config, partly), partly)


def test_layer_numbers_that_count_from_one() -> None:
    config = published_config("kimi_k3")
    assert config
    [pattern] = [row["name"] for row in table("kimi_k3")["tensors"] if row["name"].endswith("A_log")]
    linear = sorted(int(name.split(".")[3]) for name in expand(pattern))
    assert len(linear) == 69
    rules = bound_to(config).rules
    assert [sorted(rule.numbers["layer"] or ()) for rule in rules if rule.name.endswith(".A_log")] == [linear]


def segments(bound: BoundFamily, ending: str) -> list[tuple[int, int, bool]]:
    rule = next(rule for rule in bound.rules if rule.name.endswith(ending))
    return [(segment.size, segment.units, segment.replicate) for segment in rule.segments]


def test_fused_parts_are_divided_each_by_itself() -> None:
    nano = bound_to(config_of("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"))
    inner, states = (4096, 64, False), (1024, 8, True)
    assert segments(nano, "mixer.in_proj.weight") == [inner, inner, states, states, (64, 64, False)]
    assert segments(nano, "mixer.conv1d.weight") == segments(nano, "mixer.conv1d.bias") == [inner, states, states]
    k3 = bound_to(published_config("kimi_k3") or {})
    assert segments(k3, "wqkv.weight") == [(1536, 12, False)] * 3
    m2 = bound_to(published_config("minimax_m2.7") or {})
    assert segments(m2, "q_norm.weight") == [(6144, 48, False)]  # over all heads, and so divided with them
    assert segments(m2, "k_norm.weight") == [(1024, 8, True)]


def test_blocks_of_gpt_oss_are_never_cut() -> None:
    bound = bound_to(config_of("openai__gpt-oss-120b"))
    rules = {rule.name.rpartition(".")[2]: rule for rule in bound.rules if rule.rule.experts == 0}
    shapes = {"gate_up_proj": (128, 5760, 2880), "gate_up_proj_bias": (128, 5760), "down_proj": (128, 2880, 2880)}
    for name, shape in shapes.items():
        rule = rules[name]
        assert (rule.shape, rule.dim, rule.rule.split.uneven) == (shape, 2 if name == "down_proj" else 1, True)
        assert [segment.units for segment in rule.segments] == [90]


#: Records of an engine whose configs the library makes a model of, and saves under the published names.
BY_THE_LIBRARY = [
    "deepseek_v2-bf16", "deepseek_v2-bf16-no_q_lora", "deepseek_v3-bf16", "deepseek_v32-bf16", "glm4_moe-bf16",
    "glm4_moe-bf16-air", "gpt_oss-bf16", "minimax_m2-bf16", "minimax_m3-bf16", "nemotron_h-dense", "nemotron_h-moe",
]  # fmt: skip

OTHERS: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {
        "model_type": "glm_moe_dsa", "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64,
        "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "index_n_heads": 4,
        "index_head_dim": 32, "index_topk": 16, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "vocab_size": 500, "pad_token_id": 0,
    },
    "glm4_moe_lite": SIZES["glm_4.7_flash"] | {
        "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 3,
        "n_routed_experts": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 500,
        "num_nextn_predict_layers": 0, "pad_token_id": 0,
    },
    "glm4v_moe": {
        "model_type": "glm4v_moe",
        "text_config": SIZES["glm_4.5v"]["text_config"] | {
            "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 8, "num_key_value_heads": 2, "n_routed_experts": 8, "vocab_size": 500,
            "pad_token_id": 0, "num_experts_per_tok": 2,
        },
        "vision_config": SIZES["glm_4.5v"]["vision_config"] | {
            "depth": 2, "hidden_size": 96, "num_heads": 4, "out_hidden_size": 128, "intermediate_size": 256,
        },
    },
    "kimi_linear": {
        "model_type": "kimi_linear", "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": None,
        "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "head_dim": 32,
        "num_experts": 8, "num_shared_experts": 1, "num_experts_per_token": 2, "first_k_dense_replace": 0,
        "vocab_size": 500, "pad_token_id": 0,  # no dense layer: the library saves it under the experts' name
        "linear_attn_config": {
            "full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 32, "num_heads": 4,
            "short_conv_kernel_size": 4,
        },
    },
}  # fmt: skip


def small_config(name: str) -> dict[str, Any]:
    if name in OTHERS:
        return OTHERS[name]
    config: dict[str, Any] = json.loads((ENGINE / f"{name}-1-1.json").read_text())["config"]
    config.pop("architectures")
    config.pop("pad_token_id", None)
    return config


@pytest.mark.reference
@pytest.mark.parametrize("name", [*BY_THE_LIBRARY, *OTHERS])
def test_the_rules_are_what_the_library_saves(name: str, tmp_path: Path) -> None:
    """Names and shapes of a small model that transformers makes and saves, against the rules for its config."""
    import torch
    import transformers

    from day0.checkpoint import open_checkpoint

    made = transformers.AutoConfig.for_model(**small_config(name))
    vision = getattr(made, "vision_config", None)
    if vision is not None and name.startswith("minimax"):
        vision.num_hidden_layers = 1  # the rules take as many as there are
    automatic: Any = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    with torch.device("cpu"):
        automatic.from_config(made).to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    bound = bind(find_family(checkpoint.config), checkpoint.config, checkpoint.tensors)
    match_all(bound, checkpoint.tensors)
    assert {key: tensor.shape for key, tensor in checkpoint.tensors.items()} == {
        key: shape for key, (_, shape) in rule_tensors(bound).items()
    }
