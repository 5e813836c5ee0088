"""What models are called by their configs: attention, positions and how far they reach, routing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.architecture.structure import structure_of
from tasks.profile.facts import architecture_facts
from tests.architecture.data import config
from tests.architecture.published_configs import CONFIGS, DATA, read


def facts(name: str, **changes: Any) -> dict[str, Any]:
    raw = read(DATA / f"configs/{name}.json") | changes
    return architecture_facts(structure_of(raw, name), "bfloat16")


def rope(name: str) -> tuple[Any, ...]:
    position = facts(name)["position"]
    keys = ("scheme", "type", "theta", "factor", "original_context", "max_position_embeddings", "extrapolated")
    return tuple(position[key] for key in keys)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meta-llama__Meta-Llama-3.1-8B", "GQA"),
        ("deepseek-ai__DeepSeek-V3", "MLA"),
        ("deepseek-ai__DeepSeek-V3.2", "MLA, sparse with an indexer (DSA)"),
        ("zai-org__GLM-5", "MLA, sparse with an indexer (DSA)"),
        ("deepseek-ai__DeepSeek-V4-Flash", "compressed (CSA/HCA)"),
        ("google__gemma-4-26B-A4B", "GQA in a sliding window + GQA"),
        ("openai__gpt-oss-120b", "GQA in a sliding window + GQA"),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", "GQA in chunks + GQA"),
        ("Qwen__Qwen3.5-397B-A17B", "gated delta net + GQA"),
        ("moonshotai__Kimi-K3", "Kimi delta attention (KDA) + MLA"),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "Mamba 2 + GQA"),
        ("MiniMaxAI__MiniMax-M3", "GQA, sparse by blocks + GQA"),
    ],
)
def test_attention_in_words_that_of_most_layers_first(name: str, words: str) -> None:
    assert facts(name)["attention"] == words


@pytest.mark.parametrize(("kv_heads", "word"), [(8, "MHA"), (2, "GQA"), (1, "MQA")])
def test_who_shares_keys_and_values(kv_heads: int, word: str) -> None:
    raw = config(num_key_value_heads=kv_heads)
    assert architecture_facts(structure_of(raw, "config.json"), None)["attention"] == word


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai__DeepSeek-V3", ("rope", "yarn", 1e4, 40.0, 4096, 163_840, True)),
        ("deepseek-ai__DeepSeek-V4-Flash", ("rope", "yarn", 1e4, 16.0, 65_536, 1_048_576, True)),
        ("meta-llama__Meta-Llama-3.1-8B", ("rope", "llama3", 5e5, 8.0, 8192, 131_072, True)),
        ("openai__gpt-oss-120b", ("rope", "yarn", 150_000.0, 32.0, 4096, 131_072, True)),
        ("google__gemma-4-26B-A4B", ("rope", "proportional", 1e6, 1.0, None, 262_144, False)),
        ("Qwen__Qwen3.5-397B-A17B", ("mrope + none", "default", 1e7, 1.0, None, 262_144, False)),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", ("rope + none", "default", 5e5, 1.0, None, 1 << 20, False)),
        ("moonshotai__Kimi-K3", ("none", None, None, None, None, 1_048_576, False)),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", ("none", None, None, None, None, 262_144, False)),
    ],
)  # fmt: skip
def test_positions_and_how_they_are_extrapolated(name: str, expected: tuple[Any, ...]) -> None:
    assert rope(name) == expected


def test_positions_of_layers_that_differ() -> None:
    kept = ("scheme", "layers", "theta", "dim", "type")
    gemma = [tuple(row[key] for key in kept) for row in facts("google__gemma-4-26B-A4B")["position"]["by_layers"]]
    assert gemma == [("rope", 25, 1e4, 256, "default"), ("rope", 5, 1e6, 128, "proportional")]
    v4 = [tuple(row[key] for key in kept) for row in facts("deepseek-ai__DeepSeek-V4-Flash")["position"]["by_layers"]]
    assert v4 == [("rope", 2, 1e4, 64, "default"), ("rope", 41, 160_000.0, 64, "yarn")]
    qwen = facts("Qwen__Qwen3.5-397B-A17B")["position"]["by_layers"]
    assert [tuple(row[key] for key in kept) for row in qwen] == [
        ("mrope", 15, 1e7, 64, "default"), ("none", 45, None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai__DeepSeek-V3", (58, 256, 8, 1, "sigmoid", 8, 4, 2.5, True)),
        ("zai-org__GLM-5", (75, 256, 8, 1, "sigmoid", 1, 1, 2.5, True)),
        ("moonshotai__Kimi-K2-Instruct", (60, 384, 8, 1, "sigmoid", 1, 1, 2.827, True)),
        ("moonshotai__Kimi-K3", (92, 896, 16, 2, "sigmoid", 1, 1, 1.0, True)),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", (48, 512, 22, 1, "sigmoid", 1, 1, 5.0, True)),
        ("openai__gpt-oss-120b", (36, 128, 4, 0, "softmax", None, None, None, True)),
        ("google__gemma-4-26B-A4B", (30, 128, 8, 0, "softmax", None, None, None, True)),
        ("Qwen__Qwen3.5-397B-A17B", (60, 512, 10, 1, "softmax", None, None, None, True)),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", (24, 128, 1, 1, "sigmoid", None, None, None, False)),
        ("mistralai__Mixtral-8x7B-v0.1", (32, 8, 2, 0, "softmax", None, None, None, True)),
    ],
)
def test_routing(name: str, expected: tuple[Any, ...]) -> None:
    keys = (
        "layers",
        "experts",
        "per_token",
        "shared",
        "scoring",
        "groups",
        "groups_per_token",
        "scaling",
        "normalised",
    )
    assert [tuple(row.get(key) for key in keys) for row in facts(name)["routing"]] == [expected]


def test_layers_that_choose_experts_by_the_tokens_number_are_told_apart() -> None:
    rows = facts("deepseek-ai__DeepSeek-V4-Flash")["routing"]
    assert [(row["layers"], row.get("chosen")) for row in rows] == [(40, None), (3, "by the token's number")]


def test_a_dense_model_has_no_routing_and_no_towers() -> None:
    found = facts("meta-llama__Meta-Llama-3.1-405B")
    assert (found["routing"], found["vision"], found["audio"], found["mtp_layers"]) == ([], False, False, 0)


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("meta-llama__Meta-Llama-3.1-8B", (32, 8, 128)),
        ("Qwen__Qwen3-0.6B", (16, 8, 128)),
        ("deepseek-ai__DeepSeek-V3", (128, None, None)),
        ("deepseek-ai__DeepSeek-V4-Flash", (64, 1, 512)),
        ("Qwen__Qwen3.5-397B-A17B", (32, 2, 256)),
        ("moonshotai__Kimi-K3", (96, None, None)),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", (64, 2, 128)),
        ("google__gemma-4-26B-A4B", (16, 8, 256)),
    ],
)
def test_heads_are_those_of_attention_not_of_a_recurrent_state(name: str, heads: tuple[int | None, ...]) -> None:
    found = facts(name)
    assert (found["heads"], found["kv_heads"], found["head_dim"]) == heads


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("deepseek-ai__DeepSeek-V3", 1),
        ("deepseek-ai__DeepSeek-V4-Flash", 1),
        ("Qwen__Qwen3.5-397B-A17B", 1),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 1),
        ("XiaomiMiMo__MiMo-7B-Base", 1),
        ("moonshotai__Kimi-K2-Instruct", 0),
        ("MiniMaxAI__MiniMax-M2.7", 0),
    ],
)
def test_modules_of_multi_token_prediction(name: str, modules: int) -> None:
    assert facts(name)["mtp_layers"] == modules


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_layer_with_attention_has_one_kind_and_every_fact_is_plain(path: Path) -> None:
    found = architecture_facts(structure_of(read(path), path.name), None)
    listed = [layer for entry in found["attention_layers"] if not entry["mtp"] for layer in entry["layers"]]
    assert len(listed) == len(set(listed)) > 0
    assert set(listed) <= set(range(found["layers"]))
    assert "unknown" not in found["position"]["scheme"]
    for row in found["routing"]:
        assert all(value is None or isinstance(value, str | int | float | bool) for value in row.values())
        assert 0 < row["per_token"] <= row["experts"]
