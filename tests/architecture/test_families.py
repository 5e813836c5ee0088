"""Every tensor of published checkpoints has its rule, every rule its tensors, with the shapes that the config says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.binding import bind
from day0.architecture.bound import Match, match_all
from day0.architecture.family import find_family
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tests.architecture.data import DATA
from tests.models.by_rules import rule_tensors
from tests.models.published import published_config, published_tensors, table

ENGINE = Path(__file__).parent.parent / "reshard/data/engine"

#: Sizes of the releases whose config.json is not at hand, as published.
SIZES: dict[str, dict[str, Any]] = {
    "llama2-7b-awq": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000,
    },
    "llama_3.2_3b_instruct": {
        "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "qwen2.5_7b_instruct": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    },
    "qwen3.5_4b": {
        "model_type": "qwen3_5", "tie_word_embeddings": True,
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 16,
            "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "full_attention_interval": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "attn_output_gate": True,
        },
        "vision_config": {
            "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096, "out_hidden_size": 2560,
            "num_position_embeddings": 2304, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
            "deepstack_visual_indexes": [],
        },
    },
}  # fmt: skip

TABLES = [
    "gemma_4_31b_it", "llama2-7b-awq", "llama_3.2_3b_instruct", "meta_llama_3.1_8b_instruct", "qwen2.5_7b_instruct",
    "qwen3.5_35b_a3b", "qwen3.5_4b", "qwen3.6_35b_a3b", "qwen3_235b_a22b_instruct_2507_fp8",
    "qwen3_30b_a3b_instruct_2507", "qwen3_next_80b_a3b_instruct", "qwen3_vl_30b_a3b_instruct", "qwen3_vl_8b_instruct",
]  # fmt: skip

#: Parameters of a config's tensors, as published; multi-token prediction and vision where the config has them.
PARAMETERS = {
    "Qwen__Qwen3-0.6B": 596_049_920,
    "Qwen__Qwen3-1.7B": 1_720_574_976,
    "Qwen__Qwen3-8B": 8_190_735_360,
    "Qwen__Qwen3-32B": 32_762_123_264,
    "Qwen__Qwen3-32B-FP8": 32_762_123_264,
    "Qwen__Qwen3-32B-FP8-Static-PerTensor": 32_762_123_264,
    "Qwen__Qwen3-30B-A3B-FP8": 30_532_122_624,
    "Qwen__Qwen3-235B-A22B": 235_093_634_560,
    "Qwen__Qwen3-Coder-480B-A35B-Instruct": 480_154_875_392,
    "Qwen__Qwen3-VL-2B-Instruct": 2_127_532_032,
    "Qwen__Qwen3-VL-4B-Instruct": 4_437_815_808,
    "Qwen__Qwen3.5-27B": 27_781_427_952,
    "Qwen__Qwen3.5-397B-A17B": 403_397_928_944,
    "XiaomiMiMo__MiMo-7B-Base": 7_833_409_536,
    "mistralai__Mixtral-8x7B-v0.1": 46_702_792_704,
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": 400_711_848_960,
    "meta-llama__Meta-Llama-3.1-70B": 70_553_706_496,
    "meta-llama__Meta-Llama-3.1-405B": 405_853_388_800,
    "nvidia__Qwen3-235B-A22B-NVFP4": 235_093_634_560,
}


def infos(tensors: list[tuple[str, str, tuple[int, ...]]]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(name, dtype, shape, "model.safetensors", 0, 0) for name, dtype, shape in tensors}


def config_of(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((DATA / f"configs/{name}.json").read_text())
    return value


def weights(matches: list[Match]) -> set[str]:
    """The names of the weights, whatever stands in their place or beside them."""
    found = set()
    for match in matches:
        if match.companion is None:
            found.add(match.tensor.name)
        elif match.companion.role == "packed":
            slots = zip(match.rule.slots, match.numbers, strict=True)
            found.add(match.rule.named({slot: n for slot, n in slots if isinstance(slot, str)}))
    return found


@pytest.mark.parametrize("name", TABLES)
def test_all_tensors_of_a_release_have_their_rules(name: str) -> None:
    config = published_config(name) or SIZES[name]
    tensors = infos(published_tensors(name))
    bound = bind(find_family(config), config, tensors)
    matches = match_all(bound, tensors)
    assert [match.tensor.name for match in matches] == list(tensors)
    assert sum(math.prod(match.tensor.shape) for match in matches) == table(name)["stated"]["elements"]
    dropped = {match.tensor.name for match in matches if match.rule.rule.drop}
    assert weights(matches) - dropped == set(rule_tensors(bound)), "rules without a tensor"


@pytest.mark.parametrize("name", ["qwen3_vl_30b_a3b_instruct", "qwen3.5_35b_a3b", "gemma_4_31b_it"])
def test_a_missing_tensor_and_one_too_many_are_named(name: str) -> None:
    config = published_config(name)
    assert config
    tensors = infos(published_tensors(name))
    for lost in list(tensors)[:: len(tensors) // 20]:
        rest = {key: tensor for key, tensor in tensors.items() if key != lost}
        with pytest.raises(InputError) as error:
            match_all(bind(find_family(config), config, rest), rest)
        assert repr(lost) in str(error.value)
    more = tensors | infos([("model.language_model.layers.99.input_layernorm.weight", "BF16", (8,))])
    with pytest.raises(InputError, match=r"layers\.99\.input_layernorm"):
        match_all(bind(find_family(config), config, more), more)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameters_by_the_config_alone(name: str, parameters: int) -> None:
    config = config_of(name)
    tensors = rule_tensors(bind(find_family(config), config))
    assert sum(math.prod(shape) for _, shape in tensors.values()) == parameters


def test_a_model_is_tied_where_its_outer_config_says_so() -> None:
    config = config_of("Qwen__Qwen3-VL-2B-Instruct")
    config["text_config"]["tie_word_embeddings"] = False
    bound = bind(find_family(config), config)
    assert bound.tied
    assert all(rule.optional for rule in bound.rules if rule.rule.kind == "head")


def nvfp4(name: str, shape: tuple[int, ...]) -> list[tuple[str, str, tuple[int, ...]]]:
    """A weight [out, in] as modelopt writes it."""
    out, into = shape
    stem = name.removesuffix(".weight")
    return [
        (name, "U8", (out, into // 2)),
        (f"{stem}.weight_scale", "F8_E4M3", (out, into // 16)),
        (f"{stem}.weight_scale_2", "F32", ()),
        (f"{stem}.input_scale", "F32", ()),
    ]


@pytest.mark.parametrize(
    "name",
    ["nvidia__Qwen3-235B-A22B-NVFP4", "nvidia__Qwen3.5-397B-A17B-NVFP4", "nvidia__Gemma-4-26B-A4B-NVFP4"],
)
def test_experts_in_nvfp4_have_tensors_of_their_own(name: str) -> None:
    """modelopt takes stacked experts apart; the language model's linear weights are packed."""
    config = config_of(name)
    text = config.get("text_config") or config
    text.update(num_experts=8, num_hidden_layers=8)
    if text.get("num_experts_per_tok"):
        text["num_experts_per_tok"] = min(text["num_experts_per_tok"], 8)
    if "layer_types" in text:
        text["layer_types"] = text["layer_types"][:8]
    by_config = rule_tensors(bind(find_family(config), config))
    tensors: list[tuple[str, str, tuple[int, ...]]] = []
    for key, (rule, shape) in by_config.items():
        if rule.rule.experts is not None:
            module, _, projection = key.rpartition(".")
            _, rows, columns = shape
            for expert in range(shape[0]):
                if projection == "gate_up_proj":
                    tensors += nvfp4(f"{module}.{expert}.gate_proj.weight", (rows // 2, columns))
                    tensors += nvfp4(f"{module}.{expert}.up_proj.weight", (rows // 2, columns))
                else:
                    tensors += nvfp4(f"{module}.{expert}.{projection}.weight", (rows, columns))
        elif rule.rule.kind in ("routed_expert", "dense_mlp"):
            tensors += nvfp4(key, shape)
        else:
            tensors.append((key, "BF16", shape))
    stored = infos(tensors)
    bound = bind(find_family(config), config, stored)
    matches = match_all(bound, stored)
    assert len(matches) == len(tensors)
    experts = [match for match in matches if match.rule.rule.kind == "routed_expert" and match.companion is None]
    assert sum(math.prod(match.rule.shape) for match in experts) == sum(
        math.prod(shape) for rule, shape in by_config.values() if rule.rule.kind == "routed_expert"
    )


#: Families whose tensors the library saves as they were published. (Not so Qwen3-VL-MoE: its experts were published
#: transposed; the shape tells.)
BY_THE_LIBRARY = [
    "gemma3-bf16", "gemma4-dense", "gemma4-moe", "gemma4-text", "llama4-bf16", "llama4-text", "mixtral-bf16",
    "phi3-bf16", "qwen2-bf16", "qwen2-tied", "qwen3-bf16", "qwen3-tied", "qwen3_5-bf16", "qwen3_5_moe-bf16",
    "qwen3_moe-bf16", "qwen3_moe-dense_layer", "qwen3_next-bf16", "qwen3_vl-bf16", "qwen3_vl-tied",
    "gemma3-vision",
]  # fmt: skip


@pytest.mark.reference
@pytest.mark.parametrize("record", BY_THE_LIBRARY)
def test_the_rules_are_what_the_library_saves(record: str, tmp_path: Path) -> None:
    """Names and shapes of a small model that transformers makes and saves, against the rules for its config."""
    import torch
    import transformers

    from day0.checkpoint import open_checkpoint

    config = json.loads((ENGINE / f"{record}-1-1.json").read_text())["config"]
    architecture = config.pop("architectures")[0]
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("cpu"):
        getattr(transformers, architecture)(made).to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    bound = bind(find_family(checkpoint.config), checkpoint.config, checkpoint.tensors)
    match_all(bound, checkpoint.tensors)
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == {
        name: shape for name, (_, shape) in rule_tensors(bound).items()
    }
