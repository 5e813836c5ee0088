"""The cache of published models to the byte, and what holds for any length and layout.

Values and their sources: DeepSeek-V3 at 1 Mi tokens is a llama.cpp run quoted by provide.ai, DeepSeek V4 the same page;
sglang#11309 for V3.2's bytes a token; Eco-Sphere/kv-cache-calculator for GLM-5.1 and MiniMax-M2.7; caches of
transformers' modules on the meta device for Llama 405B, Qwen3-Next and Nemotron-3-Nano; block sizes from vLLM's logs
(docs.lmcache.ai/recipes/qwen3_5.html). The others are arithmetic from the config.
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.cache import CacheDtypes, ModelCache, cache_of, dtypes_of, plain
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.structure import Structure, structure_of
from day0.errors import InputError
from tests.architecture.data import config
from tests.architecture.published_configs import CONFIGS, DATA, read

MIB_TOKENS = 1 << 20
FP8 = CacheDtypes(cache="fp8_ds_mla", index="fp8")
NAMES = [path.stem for path in CONFIGS]


@cache
def structure(name: str) -> Structure:
    return structure_of(read(DATA / f"configs/{name}.json"), name)


@cache
def held(name: str, mtp: bool = False) -> ModelCache:
    return cache_of(structure(name), dtypes_of(structure(name)), mtp)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("meta-llama__Meta-Llama-3.1-70B", 327_680),
        ("meta-llama__Meta-Llama-3.1-405B", 516_096),
        ("Qwen__Qwen3-235B-A22B", 192_512),
        ("deepseek-ai__DeepSeek-V3", 70_272),
        ("moonshotai__Kimi-K2.5", 70_272),
        ("deepseek-ai__DeepSeek-V3.2", 61 * (1_152 + 256)),
        ("zai-org__GLM-5.1", 89_856 + 19_968),
        ("MiniMaxAI__MiniMax-M2.7", 253_952),
        ("deepseek-ai__DeepSeek-V4-Flash", 21 * (512 // 4 + 128 // 4) * 2 + 20 * 512 * 2 // 128),
        ("moonshotai__Kimi-K3", 27_648),
        ("Qwen__Qwen3-Next-80B-A3B-Instruct", 24_576),
        ("Qwen__Qwen3.5-397B-A17B", 30_720),
        ("openai__gpt-oss-120b", 36_864),
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 6_144),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 12_288),
        ("MiniMaxAI__MiniMax-M3", 122_880 + 14_592),
        ("google__gemma-4-26B-A4B", 20_480),
        ("zai-org__GLM-4.5.partial", 376_832),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", 12 * 8 * 256 * 2),
    ],
)
def test_bytes_of_one_more_token(name: str, value: int) -> None:
    assert held(name).bytes_per_token == value


@pytest.mark.parametrize(
    ("name", "windows_and_states", "convolutions"),
    [
        ("meta-llama__Meta-Llama-3.1-70B", 0, 0),
        ("Qwen__Qwen3-Next-80B-A3B-Instruct", 75_497_472, 36 * 8_192 * 3 * 2),
        ("moonshotai__Kimi-K3", 434_110_464, 69 * 3 * 96 * 128 * 3 * 2),
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 48_234_496, 23 * (4_096 + 2_048) * 3 * 2),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 402_653_184, 48 * (16_384 + 2_048) * 3 * 2),
        ("openai__gpt-oss-120b", 4_718_592, 0),
        ("google__gemma-4-26B-A4B", 209_715_200, 0),
        ("deepseek-ai__DeepSeek-V4-Flash", 43 * 128 * 512 * 2, 0),
        ("meta-llama__Llama-4-Maverick-17B-128E-Instruct", 36 * 8_192 * 8 * 256 * 2, 0),
    ],
)
def test_bytes_of_a_sequence_whatever_its_length(name: str, windows_and_states: int, convolutions: int) -> None:
    """Of a convolution of width k the last k - 1 inputs, as engines keep; transformers keeps k."""
    assert held(name).bytes_per_sequence == windows_and_states + convolutions


def test_transformers_keeps_one_more_input_of_a_convolution() -> None:
    """Its cache for Qwen3-Next on the meta device has 8,192 channels × 4 in each of 36 layers."""
    ours = held("Qwen__Qwen3-Next-80B-A3B-Instruct").bytes_per_sequence - 75_497_472
    assert ours * 4 == 36 * 8_192 * 4 * 2 * 3


@pytest.mark.parametrize(
    ("name", "tokens", "dtypes", "gib"),
    [
        ("deepseek-ai__DeepSeek-V3", MIB_TOKENS, CacheDtypes(), 68.625),
        ("deepseek-ai__DeepSeek-V3.2", 975_424, FP8, 43.667),
        ("deepseek-ai__DeepSeek-V3.2", 1_462_784, FP8, 65.484),
        ("deepseek-ai__DeepSeek-V3", 1_462_784, CacheDtypes(cache="fp8_ds_mla"), 54.515),
    ],
)
def test_published_totals(name: str, tokens: int, dtypes: CacheDtypes, gib: float) -> None:
    assert cache_of(structure(name), dtypes).bytes(tokens) / (1 << 30) == pytest.approx(gib, abs=6e-4)


def test_an_fp8_index_has_scales_and_a_packed_latent_656_bytes() -> None:
    assert cache_of(structure("deepseek-ai__DeepSeek-V3.2"), FP8).bytes_per_token == 61 * 788
    assert cache_of(structure("deepseek-ai__DeepSeek-V3"), FP8).bytes_per_token == 61 * 656
    v4 = cache_of(structure("deepseek-ai__DeepSeek-V4-Flash"), FP8)
    assert v4.slope == 21 * Fraction(584 + 132, 4) + 20 * Fraction(584, 128)
    assert v4.bytes_per_sequence == 43 * 128 * 584


def test_deepseek_v4_at_a_million_tokens() -> None:
    """6.08 GiB as published is with the indexer's scales; 6.06 GiB, as often computed, without them."""
    v4 = structure("deepseek-ai__DeepSeek-V4-Flash")
    window = 43 * 128 * 512 * 2
    with_scales = cache_of(v4, CacheDtypes(index="fp8")).bytes(MIB_TOKENS) - window
    scales = 21 * 4 * MIB_TOKENS // 4
    assert with_scales / (1 << 30) == pytest.approx(6.08, abs=5e-3)
    assert (with_scales - scales) / (1 << 30) == pytest.approx(6.0625, abs=1e-6)
    assert (cache_of(v4, CacheDtypes()).bytes(MIB_TOKENS) - window) / (1 << 30) == pytest.approx(6.71875)


@pytest.mark.parametrize(
    ("name", "one_layer"),
    [
        ("deepseek-ai__DeepSeek-V3", 1_152),
        ("zai-org__GLM-4.5.partial", 4_096),
        ("Qwen__Qwen3-Next-80B-A3B-Instruct", 2_048),
        ("XiaomiMiMo__MiMo-7B-Base", 4_096),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 1_024),
        ("deepseek-ai__DeepSeek-V4-Flash", 0),
        ("moonshotai__Kimi-K3", 0),
    ],
)
def test_multi_token_prediction_adds_its_own_layers_and_no_others(name: str, one_layer: int) -> None:
    """sglang#8482 sized it for all layers. DeepSeek V4's module sees its window alone; Kimi-K3 has none."""
    assert held(name, True).bytes_per_token - held(name).bytes_per_token == one_layer


def test_shared_indexers_are_cached_once() -> None:
    """GLM-5.2: 57 of 78 layers use the choice of a layer before them."""
    raw = read(DATA / "configs/zai-org__GLM-5.1.json")
    kinds = ["full" if layer < 3 or layer % 4 == 2 else "shared" for layer in range(78)]
    listed = cache_of(structure_of({**raw, "indexer_types": kinds}, "listed"), CacheDtypes())
    assert kinds.count("full") == 3 + 18
    assert listed.bytes_per_token == 89_856 + 21 * 256
    by_rule = structure_of({**raw, "index_topk_freq": 4, "index_skip_topk_offset": 3}, "by rule")
    assert cache_of(by_rule, CacheDtypes()).bytes_per_token == 89_856 + 21 * 256
    pattern = "".join(kind[0].upper() for kind in kinds)
    by_pattern = structure_of({**raw, "index_topk_pattern": pattern}, "by pattern")
    assert cache_of(by_pattern, CacheDtypes()).bytes_per_token == 89_856 + 21 * 256


def test_states_are_held_as_the_config_says() -> None:
    raw = read(DATA / "configs/nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json")
    halved = structure_of({**raw, "mamba_ssm_cache_dtype": "bfloat16"}, "halved")
    assert dtypes_of(halved).state == "bfloat16"
    wrong = structure_of({**raw, "mamba_ssm_cache_dtype": "int3"}, "wrong")
    with pytest.raises(InputError, match="mamba_ssm_cache_dtype is 'int3'"):
        dtypes_of(wrong)


@pytest.mark.parametrize("dtypes", [CacheDtypes(cache="fp8_ds_mla"), CacheDtypes(cache="int4"), CacheDtypes("", "fp8")])
def test_a_dtype_that_does_not_fit_is_refused(dtypes: CacheDtypes) -> None:
    with pytest.raises(InputError, match="keys and values"):
        cache_of(structure("meta-llama__Meta-Llama-3.1-8B"), dtypes)


def test_each_kind_of_layer_tells_its_own() -> None:
    kinds = [part.as_json() for part in held("openai__gpt-oss-120b").parts]
    assert [(kind["kind"], kind["layers"], kind["bytes_per_token"], kind["bytes_per_sequence"]) for kind in kinds] == [
        ("sliding_attention", 18, 0, 4_718_592),
        ("full_attention", 18, 36_864, 0),
    ]
    assert kinds[0]["window"] == 128
    delta = held("moonshotai__Kimi-K3").parts[0].as_json()
    assert [(item["what"], item["dtype"], item["bytes_per_sequence"]) for item in delta["items"]] == [
        ("state", "float32", 434_110_464),
        ("convolution inputs", "bfloat16", 15_261_696),
    ]
    assert sum(item["bytes_per_sequence"] for item in delta["items"]) == delta["bytes_per_sequence"]
    assert held("deepseek-ai__DeepSeek-V3", True).parts[-1].name == "mtp_latent_attention"
    assert plain(Fraction(1, 4)) == 0.25


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(NAMES), st.integers(0, 400_000), st.integers(0, 5_000))
def test_more_tokens_never_need_less(name: str, tokens: int, more: int) -> None:
    assert held(name).bytes(tokens) <= held(name).bytes(tokens + more)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(NAMES), st.integers(100, 3_000), st.integers(1, 3_000))
def test_a_and_b_are_exact_once_the_windows_are_full(name: str, first: int, more: int) -> None:
    """At multiples of 128 tokens, where no compressed entry is unfinished, from 12,800 on, beyond every window."""
    low, high = 128 * first, 128 * (first + more)
    model = held(name)
    assert model.bytes(high) - model.bytes(low) == model.slope * (high - low)
    assert model.bytes(low) == model.bytes_per_sequence + model.slope * low


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(NAMES), st.sampled_from([1, 2, 3, 4, 8, 16, 64]), st.integers(1, 9), st.integers(0, 50_000))
def test_the_ranks_together_hold_the_whole_at_least(name: str, tp: int, pp: int, tokens: int) -> None:
    model = held(name, True)
    ranks = [model.rank(Sizes(tp, pp), stage) for stage in pipeline_stages(model.layers, pp)]
    assert sum(tp * rank.bytes(tokens) for rank in ranks) >= model.bytes(tokens)
    assert sum(len(part.layers) for rank in ranks for part in rank.parts) == sum(len(p.layers) for p in model.parts)


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_of_one_rank_holds_the_whole(name: str) -> None:
    assert held(name, True).rank(Sizes(1, 1)) == held(name, True)


def test_a_latent_cache_is_not_divided_but_its_tokens_may_be() -> None:
    """tt-xla#5861, vllm#51454: budgeted as divided it is too small by the number of ranks."""
    v3 = held("deepseek-ai__DeepSeek-V3")
    assert v3.rank(Sizes(8, 1)).bytes_per_token == 70_272
    assert v3.rank(Sizes(8, 1, dcp=8)).bytes_per_token == 70_272 // 8
    assert v3.rank(Sizes(8, 1, dcp=8)).bytes(9) == 2 * 70_272
    assert held("meta-llama__Meta-Llama-3.1-70B").rank(Sizes(16, 1)).bytes_per_token == 327_680 // 8
    assert held("Qwen__Qwen3-Next-80B-A3B-Instruct").rank(Sizes(8, 1, dcp=4)).bytes_per_token == 24_576 // 8


def test_the_last_stage_has_multi_token_prediction() -> None:
    v3 = held("deepseek-ai__DeepSeek-V3", True)
    stages = [v3.rank(Sizes(1, 4), stage).bytes_per_token for stage in pipeline_stages(61, 4)]
    assert stages == [1_152 * layers for layers in (15, 15, 16, 16)]


@pytest.mark.parametrize(("name", "tokens"), [("Qwen__Qwen3.5-27B", 784), ("Qwen__Qwen3-Next-80B-A3B-Instruct", 1_056)])
def test_attention_pages_grow_to_the_size_of_a_state(name: str, tokens: int) -> None:
    """vLLM's log of Qwen3.6-27B, which has Qwen3.5-27B's sizes: "Setting attention block size to 784 tokens"."""
    engine = held(name).engine(1, 16, 1)
    assert engine.page_tokens == tokens
    assert held(name).engine_bytes(1, 16, 1) == engine.page_bytes * structure(name).layers
    assert held(name).fragmentation(tokens, 16, 1) < held(name).fragmentation(tokens + 1, 16, 1)


RESERVED = json.loads((DATA / "engine_cache.json").read_text())["reserved"]


@pytest.mark.parametrize("case", RESERVED, ids=lambda case: f"{case['model']}-{case['tokens']}")
def test_the_engine_reserves_what_its_own_allocator_does(case: dict[str, Any]) -> None:
    """tests/architecture/capture_engine_cache.py wrote them down."""
    packed = case["model"].startswith("deepseek-ai__DeepSeek-V4")
    model = cache_of(structure(case["model"]), FP8) if packed else held(case["model"])
    assert model.engine_bytes(case["tokens"], case["page"], case["batched"]) == case["bytes"]


def test_whole_pages_are_allocated() -> None:
    model = held("meta-llama__Meta-Llama-3.1-8B")
    assert model.engine_bytes(17, 16, 8_192) == 32 * 131_072
    assert model.fragmentation(16, 16, 8_192) == 0
    assert model.fragmentation(17, 16, 8_192) == 15 * 131_072


def test_a_sliding_window_holds_what_is_computed_at_once_too() -> None:
    """min(window - 1 + batched, tokens) tokens and a page; full layers all tokens."""
    model = held("openai__gpt-oss-120b")
    layer = 2_048
    full, sliding = 18 * layer * 32_768, 18 * layer * ((127 + 2_048 + 15) // 16 + 1) * 16
    assert model.engine_bytes(32_768, 16, 2_048) == full + sliding
    assert model.engine_bytes(100, 16, 2_048) == 18 * layer * (7 + 8) * 16


def test_groups_of_layers_are_filled_up() -> None:
    """5 of 30 layers are full: 5 groups of 5 sliding ones, and full pages of twice the tokens."""
    model = held("google__gemma-4-26B-A4B")
    page = 16 * 8 * 512 * 2
    engine = model.engine(4_096, 16, 1)
    assert (engine.page_bytes, engine.page_tokens) == (page, 16)
    assert engine.bytes == page * 5 * (4_096 // 32 + 5 * (1_024 // 16 + 1))


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(NAMES), st.integers(1, 300_000), st.integers(0, 5_000), st.sampled_from([16, 64, 256]),
    st.integers(1, 10_000),
)  # fmt: skip
def test_the_engine_never_needs_less(name: str, tokens: int, more: int, page: int, batched: int) -> None:
    model = held(name)
    assert model.bytes(tokens) <= model.engine_bytes(tokens, page, batched)
    assert model.engine_bytes(tokens, page, batched) <= model.engine_bytes(tokens + more, page, batched + more)


def test_a_model_of_one_kind() -> None:
    small = cache_of(structure_of(config(), "small"), CacheDtypes())
    assert small.bytes(10) == 10 * 3 * 2 * 2 * 8 * 2
    assert small.rank(Sizes(4, 1)).bytes(10) == small.bytes(10) // 2
