"""Keys that nothing reads: reported where they look like sizes, refused where they stand for a part of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.architecture.binding import bind
from day0.architecture.family import all_families, find_family
from day0.architecture.structure import structure_of
from day0.architecture.unread import config_keys, foreign_part, unread_sizes
from day0.errors import InputError
from tests.architecture.data import DATA, config
from tests.architecture.published_configs import CONFIGS, read

BY_FAMILY: dict[str, Path] = {}
for _path in CONFIGS:
    BY_FAMILY.setdefault(find_family(read(_path)).name, _path)

every_family = pytest.mark.parametrize("path", BY_FAMILY.values(), ids=BY_FAMILY)

#: Parts that releases add to a known architecture, by what they write into the config.
FOREIGN = [
    ({"num_local_experts": 8}, "mixture of experts"),
    ({"n_routed_experts": 256}, "mixture of experts"),
    ({"moe_num_experts": 16, "moe_topk": 2}, "mixture of experts"),
    ({"kv_lora_rank": 512}, "latent attention"),
    ({"index_topk": 2048}, "indexer"),
    ({"mamba_d_state": 16}, "recurrent"),
    ({"linear_num_value_heads": 32}, "recurrent"),
    ({"hybrid_override_pattern": "M-M*" * 5}, "recurrent"),
    ({"attention_chunk_size": 8192}, "window"),
    ({"num_nextn_predict_layers": 1}, "multi-token prediction"),
    ({"block_configs": [{"ffn": {"no_op": False}}]}, "different shapes"),
    ({"cross_attention_layers": [3, 8]}, "an encoder"),
    ({"hidden_size_per_layer_input": 256}, "each layer"),
    ({"num_kv_shared_layers": 10}, "share one cache"),
    ({"vision_config": {"hidden_size": 8}}, "vision_config"),
    ({"audio_config": {"num_mel_bins": 80}}, "audio_config"),
]


def text_of(value: dict[str, Any]) -> dict[str, Any]:
    """Where a config says what its language model is."""
    nested: dict[str, Any] = value.get("text_config", value)
    return nested


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_of_a_published_config_nothing_is_left_unread_or_foreign(path: Path) -> None:
    raw = read(path)
    bound = bind(find_family(raw), raw)
    assert unread_sizes(raw, bound) == ()
    assert foreign_part(raw, bound) is None


@every_family
def test_a_size_that_no_family_knows_is_reported(path: Path) -> None:
    raw = read(path)
    raw["num_memory_slots"] = 64
    text_of(raw).setdefault("memory", {})["slot_sizes"] = [4, 8]
    found = unread_sizes(raw, bind(find_family(raw), raw))
    nested = "text_config." if "text_config" in raw else ""
    assert set(found) == {"num_memory_slots 64", f"{nested}memory.slot_sizes (a list of 2)"}


@every_family
def test_what_each_layer_is_counts_as_a_size(path: Path) -> None:
    raw = read(path)
    bound = bind(find_family(raw), raw)
    text_of(raw)["memory_kinds"] = ["none", "slots"] * (bound.layers // 2) + ["none"] * (bound.layers % 2)
    assert [key.rpartition(".")[2] for key in unread_sizes(raw, bound)] == [f"memory_kinds (a list of {bound.layers})"]


@every_family
def test_what_changes_no_size_is_not_reported(path: Path) -> None:
    raw = read(path)
    raw |= {
        "eos_token_id": [1, 106], "image_token_index": 262144, "rope_theta": 10_000, "max_position_embeddings": 32_768,
        "id2label": {"0": "LABEL_0"}, "transformers_version": "5.24.0", "pretraining_tp": 4, "attention_dropout": 0.1,
        "max_length": 20, "use_memory": True, "memory_kind": "slots", "memory_decay": 2.5, "memory_layers": 0,
    }  # fmt: skip
    assert unread_sizes(raw, bind(find_family(raw), raw)) == ()


@pytest.mark.parametrize(("foreign", "meaning"), FOREIGN, ids=lambda value: str(value)[:40])
def test_a_part_that_a_dense_family_lacks_is_refused(foreign: dict[str, Any], meaning: str) -> None:
    key = next(iter(foreign))
    with pytest.raises(InputError, match=f"(?s){meaning}.*'llama'.*not counted as a plain model") as refused:
        structure_of(config(**foreign, num_hidden_layers=20), "config.json")
    assert key in str(refused.value)


@every_family
def test_experts_that_a_family_does_not_read_are_refused(path: Path) -> None:
    raw = read(path)
    raw["num_shadow_experts"] = 64
    with pytest.raises(InputError, match=r"a mixture of experts \(num_shadow_experts 64\)"):
        structure_of(raw, path.name)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3", "qwen3_5", "gpt_oss", "gemma4"])
def test_a_kind_of_layer_that_a_family_does_not_tell_apart_is_refused(family: str) -> None:
    raw = read(BY_FAMILY[family])
    layers = bind(find_family(raw), raw).layers
    text_of(raw)["layer_types"] = [*["full_attention"] * (layers - 1), "retention"]
    with pytest.raises(InputError, match="retention"):
        structure_of(raw, "config.json")


def test_gemma_with_embeddings_or_caches_that_have_no_rule_is_refused() -> None:
    """As in E2B and E4B; where these are 0, `vocab_size_per_layer_input` stands for nothing."""
    raw = read(BY_FAMILY["gemma4"])
    for key, meaning in (("hidden_size_per_layer_input", "each layer"), ("num_kv_shared_layers", "share one cache")):
        changed = {**raw, "text_config": {**raw["text_config"], key: 20}}
        with pytest.raises(InputError, match=rf"{meaning}.*text_config\.{key} 20.*'gemma4"):
            structure_of(changed, "config.json")


def test_layers_of_values_that_have_no_rule_are_refused() -> None:
    """MiniMax: linear attention among full, and an indexer with values."""
    raw = read(DATA / "configs/MiniMaxAI__MiniMax-M2.7.json")
    raw["attn_type_list"][3] = 0
    with pytest.raises(InputError, match="does not say what attention layer 3 has"):
        structure_of(raw, "config.json")
    raw = read(DATA / "configs/MiniMaxAI__MiniMax-M3.json")
    raw["sparse_attention_config"]["sparse_disable_index_value"][5] = 0
    with pytest.raises(InputError, match="does not say what attention layer 5 has"):
        structure_of(raw, "config.json")


@pytest.mark.parametrize("name", ["zai-org__GLM-5.1", "deepseek-ai__DeepSeek-V3.2"])
def test_a_list_of_dense_layers_comes_before_their_number(name: str) -> None:
    raw = read(DATA / f"configs/{name}.json")
    layers = raw["num_hidden_layers"]
    same = raw | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * (layers - 3), "first_k_dense_replace": 1}
    assert structure_of(same, name).total == structure_of(raw, name).total
    fewer = raw | {"mlp_layer_types": ["sparse"] * layers}
    assert structure_of(fewer, name).total == structure_of(raw | {"first_k_dense_replace": 0}, name).total


def test_full_attention_is_where_the_list_says_whatever_the_interval() -> None:
    raw = read(BY_FAMILY["qwen3_next"])
    listed = ["full_attention", *["linear_attention"] * (raw["num_hidden_layers"] - 1)]
    structure = structure_of(raw | {"layer_types": listed}, "config.json")
    full = [entry.layers for entry in structure.attention if entry.attention.kind == "full" and not entry.mtp]
    assert full == [(0,)]


def test_the_reasons_are_sentences_and_the_patterns_no_nets() -> None:
    for family in all_families():
        for key, why in family.unused.items():
            assert len(why.split()) >= 4, (family.name, key)
    assert not {"*", "num_*", "*_size", "*_dim", "*_layers", "*_heads"} & set(config_keys())
