"""What families say of their layers: for every published config, and for configs that say it otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from day0.architecture.decoder_rules import BoundAttention, BoundRouting, DecoderRules
from day0.architecture.structure import Structure, structure_of
from day0.errors import InputError
from tests.architecture.data import config
from tests.architecture.published_configs import CONFIGS, DATA, read

NAMES = [path.stem for path in CONFIGS]


@cache
def structure(name: str) -> Structure:
    return structure_of(raw(name), name)


def raw(name: str) -> dict[str, Any]:
    return read(DATA / f"configs/{name}.json")


def changed(name: str, **changes: Any) -> Structure:
    """A published config with some keys changed (of a model of text and images, the text's); None takes one out."""
    value = raw(name)
    text = value.get("text_config", value)
    text.update(changes)
    for key in [key for key, held in changes.items() if held is None]:
        del text[key]
    return structure_of(value, name)


def kinds(model: Structure) -> dict[str, tuple[int, ...]]:
    """Attention kinds of the decoder → their layers."""
    found: dict[str, tuple[int, ...]] = {}
    for held in model.attention:
        if not held.mtp:
            found[held.attention.kind] = tuple(sorted(found.get(held.attention.kind, ()) + held.layers))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_has_one_attention_and_one_scheme_of_positions(name: str) -> None:
    model = structure(name)
    attention = Counter(layer for held in model.attention if not held.mtp for layer in held.layers)
    assert set(attention.values()) == {1}
    assert set(attention) <= set(range(model.layers))
    positions = Counter(layer for held in model.position for layer in held.layers)
    assert positions == attention
    routed = Counter(layer for held in model.routing if not held.mtp for layer in held.layers)
    with_experts = {layer for group in model.groups if group.kind == "routed_expert" for layer in (group.layers or ())}
    assert set(routed) == with_experts
    assert set(routed.values()) <= {1}


@pytest.mark.parametrize("name", NAMES)
def test_prediction_layers_are_those_that_may_have_tensors(name: str) -> None:
    """Numbered on after the decoder's; none where the family has no tensors of such."""
    model = structure(name)
    predicting = {layer for held in model.attention if held.mtp for layer in held.layers}
    assert predicting == set(range(model.layers, model.layers + len(predicting)))
    assert bool(predicting) <= any(rule.rule.kind == "mtp" for rule in model.family.rules)
    assert all(held.layers <= predicting for held in model.routing if held.mtp)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai__DeepSeek-V3", (256, 8, 1, {"scoring": "sigmoid", "groups": 8, "groups_per_token": 4,
                                                  "scaling": 2.5, "normalised": True, "bias": True})),
        ("moonshotai__Kimi-K3", (896, 16, 2, {"scoring": "sigmoid", "groups": 1, "groups_per_token": 1,
                                              "scaling": 1.0, "normalised": True, "bias": True})),
        ("google__gemma-4-26B-A4B", (128, 8, 0, {"scoring": "softmax", "normalised": True})),
        ("openai__gpt-oss-120b", (128, 4, 0, {"scoring": "softmax", "normalised": True})),
        ("Qwen__Qwen3-Next-80B-A3B-Instruct", (512, 10, 1, {"scoring": "softmax", "normalised": True})),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", (128, 1, 1, {"scoring": "sigmoid", "normalised": False})),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", (512, 22, 1, {"scoring": "sigmoid", "groups": 1,
                                                                         "groups_per_token": 1, "scaling": 5.0,
                                                                         "normalised": True, "bias": True})),
        ("MiniMaxAI__MiniMax-M3", (128, 4, 1, {"scoring": "sigmoid", "scaling": 2.0, "normalised": True,
                                               "bias": True})),
    ],
)  # fmt: skip
def test_routing(name: str, expected: tuple[int, int, int, Mapping[str, Any]]) -> None:
    decoder = next(held for held in structure(name).routing if not held.mtp)
    assert (decoder.experts, decoder.per_token, decoder.shared, decoder.facts) == expected


def test_the_first_layers_of_deepseek_v4_choose_by_the_token() -> None:
    scored, hashed, predicting = structure("deepseek-ai__DeepSeek-V4-Flash").routing
    assert hashed.layers == frozenset(range(3))
    assert hashed.facts["chosen"] == "by the token's number"
    assert "bias" not in hashed.facts
    assert scored.layers == frozenset(range(3, 43))
    assert scored.facts["scoring"] == "sqrtsoftplus"
    assert (predicting.mtp, predicting.layers) == (True, frozenset([43]))


def test_deepseek_v4_has_a_ratio_for_its_prediction_layer_too() -> None:
    """compress_ratios has 44 entries for 43 layers; the last one is the module's and compresses nothing."""
    ratios: dict[int, int] = {}
    for held in structure("deepseek-ai__DeepSeek-V4-Flash").attention:
        ratios.update(dict.fromkeys(held.layers, held.attention.sizes["ratio"]))
    assert [ratios[layer] for layer in range(44)] == raw("deepseek-ai__DeepSeek-V4-Flash")["compress_ratios"]


def test_lists_of_kimi_k3_count_from_one() -> None:
    listed = raw("moonshotai__Kimi-K3")["text_config"]["linear_attn_config"]
    found = kinds(structure("moonshotai__Kimi-K3"))
    assert [layer + 1 for layer in found["latent"]] == listed["full_attn_layers"]
    assert [layer + 1 for layer in found["kimi_delta"]] == listed["kda_layers"]


@pytest.mark.parametrize(
    ("name", "schemes"),
    [
        ("moonshotai__Kimi-K3", [("none", 69, None), ("none", 24, None)]),
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", [("none", 29, None)]),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", [("rope", 36, 128), ("none", 12, None)]),
        ("Qwen__Qwen3-Next-80B-A3B-Instruct", [("rope", 12, 64), ("none", 36, None)]),
        ("Qwen__Qwen3.5-27B", [("mrope", 16, 64), ("none", 48, None)]),
        ("Qwen__Qwen3-VL-4B-Instruct", [("mrope", 36, 128)]),
        ("zai-org__GLM-4.5.partial", [("rope", 92, 64)]),
        ("MiniMaxAI__MiniMax-M2.7", [("rope", 62, 64)]),
        ("deepseek-ai__DeepSeek-V3.2", [("rope", 61, 64)]),
        ("google__gemma-4-26B-A4B", [("rope", 25, 256), ("rope", 5, 128)]),
        ("deepseek-ai__DeepSeek-V4-Flash", [("rope", 2, 64), ("rope", 41, 64)]),
    ],
)
def test_positions(name: str, schemes: list[tuple[str, int, int | None]]) -> None:
    assert [(held.scheme, len(held.layers), held.dim) for held in structure(name).position] == schemes


def test_layers_may_have_bases_of_their_own() -> None:
    local, full = structure("google__gemma-4-26B-A4B").position
    assert (local.theta, full.theta) == (10_000, 1_000_000)
    assert (full.where, full.parameters["rope_type"]) == ("rope_parameters.full_attention", "proportional")
    window, compressed = structure("deepseek-ai__DeepSeek-V4-Flash").position
    assert (window.theta, compressed.theta) == (10_000, 160_000)
    assert (window.parameters, compressed.parameters["factor"]) == ({}, 16)


@pytest.mark.parametrize("name", ["Qwen__Qwen3-8B", "XiaomiMiMo__MiMo-7B-Base"])
def test_a_window_counts_only_where_it_is_used(name: str) -> None:
    layers = structure(name).layers
    assert kinds(changed(name, sliding_window=4_096, use_sliding_window=False)) == {"full": tuple(range(layers))}
    assert kinds(changed(name, sliding_window=None, use_sliding_window=True)) == {"full": tuple(range(layers))}
    used = changed(name, sliding_window=4_096, use_sliding_window=True, max_window_layers=30)
    assert kinds(used) == {"full": tuple(range(30)), "sliding": tuple(range(30, layers))}
    listed = ["sliding_attention" if layer % 2 else "full_attention" for layer in range(layers)]
    named = changed(name, sliding_window=4_096, use_sliding_window=True, layer_types=listed)
    assert kinds(named)["sliding"] == tuple(range(1, layers, 2))


def test_a_window_of_mistral_and_phi3_holds_for_all_layers() -> None:
    for model_type in ("mistral", "llama", "phi3"):
        windowed = structure_of(config(model_type=model_type, sliding_window=512), model_type)
        assert kinds(windowed) == {"sliding": (0, 1, 2)}
        assert windowed.attention[0].attention.sizes["window"] == 512


def test_gemma_3_says_it_by_a_pattern_or_by_a_list() -> None:
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 8, "sliding_window": 512, "head_dim": 16}
    by_pattern = structure_of(config(**gemma), "gemma")
    assert kinds(by_pattern) == {"sliding": (0, 1, 2, 3, 4, 6, 7), "full": (5,)}
    assert kinds(structure_of(config(**gemma, sliding_window_pattern=4), "gemma"))["full"] == (3, 7)
    listed = ["full_attention"] * 2 + ["sliding_attention"] * 6
    assert kinds(structure_of(config(**gemma, layer_types=listed), "gemma"))["full"] == (0, 1)


def test_llama_4_may_name_its_layers_without_positions() -> None:
    name = "meta-llama__Llama-4-Maverick-17B-128E-Instruct"
    assert kinds(structure(name))["full"] == tuple(range(3, 48, 4))
    named = changed(name, no_rope_layers=[0] + [1] * 47)
    assert kinds(named)["full"] == (0,)
    assert [(held.scheme, len(held.layers)) for held in named.position] == [("rope", 47), ("none", 1)]


def test_kimi_linear_may_have_positions() -> None:
    assert [held.scheme for held in changed("moonshotai__Kimi-K3", mla_use_nope=False).position] == ["none", "rope"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "deepseek-ai__DeepSeek-V3",
            {"num_experts_per_tok": 300},
            "num_experts_per_tok is 300 and n_routed_experts 256",
        ),
        ("deepseek-ai__DeepSeek-V3", {"num_experts_per_tok": "8"}, "num_experts_per_tok is '8'"),
        ("deepseek-ai__DeepSeek-V3", {"scoring_func": ["sigmoid"]}, "scoring_func is .* it must be one value"),
        ("deepseek-ai__DeepSeek-V3", {"rope_theta": "10k"}, "rope_theta is '10k'"),
        ("zai-org__GLM-4.5.partial", {"partial_rotary_factor": 1.5}, "partial_rotary_factor is '1.5'"),
        ("zai-org__GLM-4.5.partial", {"partial_rotary_factor": True}, "partial_rotary_factor is 'True'"),
        ("openai__gpt-oss-120b", {"sliding_window": 0}, "sliding_window is '0'; it must be a positive integer"),
        ("zai-org__GLM-5.1", {"indexer_types": ["full"]}, "indexer_types has 1 entries for the 78 layers"),
        (
            "Qwen__Qwen3.5-35B-A3B",
            {"num_experts_per_tok": None},
            "0 and num_experts 256; a token is routed to at least one expert",
        ),
    ],
)
def test_what_cannot_be_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        changed(name, **changes)


def test_a_family_may_name_only_what_it_has() -> None:
    rules = DecoderRules.model_validate(
        {"attention": [{"kind": "full", "layers": "some", "sizes": {"heads": "heads", "kv_heads": "2*groups"}}]}
    )
    with pytest.raises(ValueError, match="full: layer set 'some' is not among `layer_sets`"):
        rules.check({"heads": 1, "groups": 1}, {})
    with pytest.raises(ValueError, match="full: 'groups' is not among `sizes`"):
        rules.check({"heads": 1}, {"some": ()})


def test_conditions_may_be_short() -> None:
    rules = DecoderRules.model_validate(
        {
            "attention": [
                {"kind": "full", "when": "flag", "sizes": {}},
                {"kind": "full", "when": {"key": "k", "given": True}, "sizes": {}},
            ]
        }
    )
    assert [[when.key for when in rule.when] for rule in rules.attention] == [["flag"], ["k"]]
    assert [rule.layers for rule in rules.attention] == [("all",), ("all",)]


def test_bound_rules_are_values() -> None:
    assert BoundAttention("full", frozenset([1]), {}, False) == BoundAttention("full", frozenset([1]), {}, False)
    assert BoundRouting(frozenset(), 2, 1, 0, {}, False).per_token == 1
