"""Reports of planners and engines that were wrong, each as a case: what is asked, and what must come out.

Each names the issue that it is from. Configs are the published ones, or written from what the report says.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.stored import converted
from day0.architecture.structure import structure_of
from day0.errors import InputError
from day0.target import GIB, Target, load_target
from day0.target_figures import Format, Fp8Format
from tasks.plan.constraints import Constraints
from tasks.plan.weights import Weights
from tests.architecture.data import DATA, LLAMA_8B, LLAMA_70B, LLAMA_405B, config
from tests.plan.asking import constraints_of, edited, model_of, plan

CONFIGS = DATA / "configs"
DEEPSEEK = CONFIGS / "deepseek-ai__DeepSeek-V3.json"
V4 = CONFIGS / "deepseek-ai__DeepSeek-V4-Flash.json"
K25 = CONFIGS / "moonshotai__Kimi-K2.5.json"
QWEN_MOE = CONFIGS / "Qwen__Qwen3-30B-A3B.json"
QWEN_MOE_FP8 = CONFIGS / "Qwen__Qwen3-30B-A3B-FP8.json"
QWEN_235B_FP8 = CONFIGS / "Qwen__Qwen3-235B-A22B-FP8.json"
QWEN_VL = CONFIGS / "Qwen__Qwen3-VL-2B-Instruct.json"
MINIMAX = CONFIGS / "MiniMaxAI__MiniMax-M2.7.json"
GEMMA_31B = CONFIGS / "nvidia__Gemma-4-31B-IT-NVFP4.json"
NANO = CONFIGS / "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json"
HYBRID = CONFIGS / "Qwen__Qwen3.5-27B.json"
NVFP4 = CONFIGS / "nvidia__Kimi-K2.5-NVFP4.json"
GPT_OSS = CONFIGS / "openai__gpt-oss-120b.json"
GLM = CONFIGS / "zai-org__GLM-4.5.partial.json"


def heads(count: int, kv: int, **more: Any) -> dict[str, Any]:
    """A Llama with so many heads of 128, and sizes that every small tp divides otherwise."""
    sizes = {"hidden_size": count * 128, "intermediate_size": 27720, "vocab_size": 64 * 27720}
    return config(num_attention_heads=count, num_key_value_heads=kv, head_dim=128, **{**sizes, **more})


def text(path: Any, **changes: Any) -> dict[str, Any]:
    """A config of several parts with its language model's keys changed."""
    raw = edited(path)
    return {**raw, "text_config": {**raw["text_config"], **changes}}


NARROW = edited(QWEN_MOE_FP8, moe_intermediate_size=320)

#: Report, config, sizes, and what forbids them: (dimension, size, divisor); None: they are possible.
DIVISIBILITY: list[tuple[str, Mapping[str, Any], Sizes, tuple[str, int, int] | None]] = [
    # Quantisation blocks: the experts' gate and up, and down.
    *(
        ("vllm#54178", NARROW, Sizes(tp, 1), ("moe_intermediate_size", 320 // tp, 128))
        for tp in (2, 4)
    ),
    ("vllm#54178, whole", NARROW, Sizes(1, 1), None),
    ("vllm#54178, by experts", NARROW, Sizes(4, 1, 4), None),
    ("vllm#48173", edited(QWEN_235B_FP8), Sizes(8, 1), ("moe_intermediate_size", 192, 128)),
    ("vllm#48173, tp 4", edited(QWEN_235B_FP8), Sizes(4, 1), None),
    ("vllm#48173, by experts", edited(QWEN_235B_FP8), Sizes(8, 1, 8), None),
    ("vllm#48173, by pairs of ranks", edited(QWEN_235B_FP8), Sizes(8, 1, 2), None),
    ("ROCm/ATOM#1488", edited(MINIMAX), Sizes(8, 1), ("intermediate_size", 192, 128)),
    ("ROCm/ATOM#1488, tp 4", edited(MINIMAX), Sizes(4, 1), None),
    ("sglang#3345", edited(DEEPSEEK), Sizes(32, 1), ("intermediate_size", 576, 128)),
    ("sglang#3345, experts whole", edited(DEEPSEEK), Sizes(32, 1, 32), ("intermediate_size", 576, 128)),
    ("sglang#26107", edited(DEEPSEEK, moe_intermediate_size=1280), Sizes(4, 1, 4),
     ("n_shared_experts*moe_intermediate_size", 320, 128)),
    ("vllm#52997", edited(QWEN_MOE_FP8, moe_intermediate_size=384), Sizes(4, 1), ("moe_intermediate_size", 96, 128)),
    # Vocabularies, which engines pad to a multiple of 64 before they divide them.
    ("vllm#31474", edited(GLM), Sizes(6, 1), ("vocab_size", 151552, 6)),
    ("vllm#440, padded", heads(64, 64, vocab_size=250682), Sizes(8, 1), None),
    ("Megatron-Bridge#1331, padded", heads(64, 64, vocab_size=151669), Sizes(4, 1), None),
    ("TensorRT-LLM#98, padded", heads(64, 64, vocab_size=32001), Sizes(2, 1), None),
    # Experts and heads.
    ("vllm#52435", edited(V4), Sizes(3, 1, 3), ("n_routed_experts", 256, 3)),
    ("vllm#52435, its heads", edited(V4), Sizes(3, 1, 3), ("num_attention_heads", 64, 3)),
    ("gpustack#814", heads(64, 8), Sizes(3, 1), ("num_attention_heads", 64, 3)),
    ("gpustack#2259", heads(32, 16), Sizes(3, 1), ("num_attention_heads", 32, 3)),
    ("gpustack#3251", heads(28, 4), Sizes(8, 1), ("num_attention_heads", 28, 8)),
    ("vllm#2652", heads(52, 52), Sizes(8, 1), ("num_attention_heads", 52, 8)),
    ("vllm#414", heads(52, 52), Sizes(3, 1), ("num_attention_heads", 52, 3)),
    ("vllm#5951", heads(40, 10), Sizes(4, 1), ("num_key_value_heads", 10, 4)),
    ("vllm#5951, tp 2", heads(40, 10), Sizes(2, 1), None),
    *(("omlx#2954", edited(V4), Sizes(tp, 1, tp), None) for tp in (2, 4, 8)),
    ("omlx#2954, one key-value head", heads(64, 1), Sizes(8, 1), None),
    ("T4: fewer key-value heads", heads(32, 4), Sizes(8, 1), None),
    ("T5c: output groups", edited(V4), Sizes(16, 1, 16), ("o_groups", 8, 16)),
    ("linear attention's heads", text(HYBRID, linear_num_key_heads=12, linear_num_value_heads=36), Sizes(8, 1),
     ("linear_num_key_heads", 12, 8)),
    ("Mamba's groups", edited(NANO, n_groups=12, mamba_num_heads=72), Sizes(8, 1, 8), ("n_groups", 12, 8)),
    ("pipeline longer than the model", config(), Sizes(1, 4), ("num_hidden_layers", 3, 4)),
    ("experts of a dense model", config(), Sizes(2, 1, 2), ("num_experts", 0, 2)),
    ("tp and ep that do not meet", edited(QWEN_MOE), Sizes(2, 1, 3), ("ep", 3, 2)),
    ("ep without the replicas for it", edited(QWEN_MOE), Sizes(2, 1, 8, 2), ("ep", 4, 8)),
    # Ranks that share the tokens of a cache (vLLM 0.32.0, config/model.py).
    ("dcp of latent attention", edited(DEEPSEEK), Sizes(8, 1, 8, dcp=8), None),
    ("dcp of few key-value heads", heads(64, 2), Sizes(8, 1, dcp=4), None),
    ("dcp of too many key-value heads", heads(64, 8), Sizes(8, 1, dcp=2), ("num_key_value_heads", 8, 16)),
    ("dcp that does not divide tp", edited(DEEPSEEK), Sizes(8, 1, 8, dcp=3), ("tp", 8, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("report", "raw", "sizes", "expected"), DIVISIBILITY, ids=[case[0] for case in DIVISIBILITY])
def test_divisibility(report: str, raw: Mapping[str, Any], sizes: Sizes, expected: tuple[str, int, int] | None) -> None:
    found = constraints_of(raw).obstacles(sizes)
    if expected is None:
        assert found == []
        return
    assert expected in [(obstacle.dimension, obstacle.size, obstacle.divisor) for obstacle in found]
    assert all(obstacle.reason and obstacle.constraint for obstacle in found)


def test_quantised_while_loading_has_blocks_too() -> None:
    """vllm#44763: Qwen3-30B-A3B as fp8 on tp 4: 768 / 4 = 192."""
    model = model_of(edited(QWEN_MOE))
    assert Constraints(model.structure, Weights(model.structure.family, model.stored)).obstacles(Sizes(4, 1)) == []
    quantised = Weights(model.structure.family, converted(model.stored, model.structure, "fp8"))
    found = Constraints(model.structure, quantised).obstacles(Sizes(4, 1))
    assert [(o.dimension, o.size, o.divisor) for o in found] == [("moe_intermediate_size", 192, 128)]
    assert "expert parallelism keeps experts whole" in found[0].reason
    assert plan(edited(QWEN_MOE), weight_dtype="fp8", tp=4, ep=4, context=4096).feasible
    assert not plan(edited(QWEN_MOE), weight_dtype="fp8", tp=4, ep=1, context=4096).feasible


def test_a_shard_smaller_than_a_block_is_said_to_be() -> None:
    found = constraints_of(edited(QWEN_MOE_FP8, moe_intermediate_size=384)).obstacles(Sizes(4, 1))
    assert "is less than a quantisation block of 128" in found[0].reason


def test_redundant_experts_are_the_way_out() -> None:
    """vllm#52435: 256 experts on 3 ranks; two more make 258 = 3 x 86."""
    reasons = [
        o.reason for o in constraints_of(edited(V4)).obstacles(Sizes(3, 1, 3)) if o.dimension == "n_routed_experts"
    ]
    assert "2 redundant experts (EPLB) 258 = 3 x 86" in reasons[0]


@pytest.mark.parametrize(
    ("report", "vocab", "tp"),
    [("vllm#440", 250682, 8), ("Megatron-Bridge#1331", 151669, 4), ("TensorRT-LLM#98", 32001, 2)],
)
def test_a_vocabulary_that_nothing_pads_is_refused(report: str, vocab: int, tp: int) -> None:
    model = model_of(heads(64, 64, vocab_size=vocab))
    unpadded = dataclasses.replace(model.structure.family, layouts={"hf": model.structure.family.layouts["hf"]})
    found = Constraints(model.structure, Weights(unpadded, model.stored)).obstacles(Sizes(tp, 1))
    assert [(o.dimension, o.size, o.divisor) for o in found] == [("vocab_size", vocab, tp)]


# Cache


def cached(raw: Any, **asked: Any) -> int:
    """Bytes of the cache on the fullest device; there is room for anything."""
    found = plan(raw, **{"device_memory": 1 << 50, "tp": 1, "pp": 1, "ep": 1, "dp": 1, "dcp": 1, **asked})
    assert found.chosen is not None, found.reason
    return found.chosen.per_device.kv_cache


def test_latent_caches_are_not_divided_over_tp() -> None:
    """T6, tenstorrent/tt-xla#5861: budgeted as sharded, four and eight times too small."""
    one = cached(DEEPSEEK, context=16384)
    assert one == 61 * (512 + 64) * 2 * 16384
    assert cached(DEEPSEEK, context=16384, tp=8, ep=8) == one
    assert cached(DEEPSEEK, context=16384, tp=8, ep=8, dcp=8) == one // 8
    assert cached(DEEPSEEK, context=16384, concurrency=8, ep=8, dp=8) == one


def test_replicas_of_attention_hold_more_of_a_latent_cache_than_tensor_parallelism() -> None:
    """vllm#51454: DeepSeek-V4-Flash on eight devices, data-parallel against tensor-parallel: 7.7 times the capacity."""
    ranks = cached(V4, context=65536, concurrency=4096, tp=8, ep=8)
    replicas = cached(V4, context=65536, concurrency=4096, ep=8, dp=8)
    assert 7 < ranks / replicas <= 8


def test_grouped_keys_are_divided_as_far_as_there_are_heads() -> None:
    """T6: 2 · local heads · head_dim; beyond as many ranks as heads each has one."""
    whole = cached(LLAMA_70B, context=4096)
    assert whole == 80 * 2 * 8 * 128 * 2 * 4096
    assert cached(LLAMA_70B, context=4096, tp=8) == whole // 8
    assert cached(LLAMA_70B, context=4096, tp=16) == whole // 8
    assert cached(LLAMA_70B, context=4096, tp=16, dcp=2) == whole // 16


def test_a_window_is_all_that_a_sliding_layer_keeps() -> None:
    """tenstorrent/tt-xla#5727: 50 of gemma-4-31B's 60 layers have a window of 1,024 tokens and were charged in full."""
    short, long = (cached(GEMMA_31B, context=n, kv_dtype="bfloat16") for n in (32768, 65536))
    raw = edited(GEMMA_31B)
    full = [kind for kind in raw["text_config"]["layer_types"] if kind == "full_attention"]
    per_token = (long - short) / 32768
    assert len(full) == 10
    assert per_token == 10 * 2 * raw["text_config"]["num_global_key_value_heads"] * 512 * 2


def test_a_window_longer_than_the_sequence_is_no_window() -> None:
    """tenstorrent/tt-xla#5834: the ring of a sliding layer is no longer than the longest sequence, here 128 tokens."""
    assert cached(GEMMA_31B, context=128) < 60 * 2 * 16 * 512 * 2 * 1024
    assert cached(GEMMA_31B, context=128) <= cached(GEMMA_31B, context=256)


def test_linear_layers_cost_nothing_for_a_token() -> None:
    """vllm#40691, PR#37124: Qwen3.5's 45 of 60 layers have a state, not a cache; kaito#2319: each sequence has one."""
    raw = CONFIGS / "Qwen__Qwen3.5-397B-A17B.json"
    tokens = cached(raw, context=262144) - cached(raw, context=131072)
    assert tokens == pytest.approx(30720 * 131072, rel=0.01)
    few, many = (cached(NANO, context=128, concurrency=n) for n in (1, 1024))
    assert many == 1024 * few
    assert few > 48_200_000


def test_multi_token_prediction_adds_its_own_layers_alone() -> None:
    """sglang#8482: the draft's cache was sized for all 61 layers."""
    without, with_it = (cached(DEEPSEEK, context=4096, mtp=mtp) for mtp in (False, True))
    assert with_it - without == (512 + 64) * 2 * 4096


def test_head_dimension_is_the_configs() -> None:
    """LMCache#688: Qwen3's heads have 128 dimensions, which is not the hidden size over the heads."""
    assert cached(CONFIGS / "Qwen__Qwen3-0.6B.json", context=4096) == 28 * 2 * 8 * 128 * 2 * 4096


# Weights and what fits


def test_two_bytes_a_parameter_and_no_less() -> None:
    """accelerate#3379: Llama-3.1-70B in 16 bits is 141 GB, not 64.73."""
    found = plan(LLAMA_70B, device_memory=1 << 40, tp=1, pp=1)
    assert found.chosen is not None
    assert found.chosen.per_device.weights == 2 * 70_553_706_496


def test_quantised_weights_are_as_large_as_they_are_stored() -> None:
    """gpustack#645: a 72B in 4 bits (GPTQ) is 42 GB, and 175 GB were claimed for it."""
    quantised = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    sizes = {"hidden_size": 8192, "intermediate_size": 29696, "num_hidden_layers": 80, "vocab_size": 152064}
    raw = config(**sizes, num_attention_heads=64, num_key_value_heads=8, quantization_config=quantised)
    found = plan(raw, device_memory=1 << 40, tp=1, pp=1)
    assert found.chosen is not None
    assert 40e9 < found.chosen.per_device.weights < 44e9
    assert found.weight_dtype == "int4"


def test_all_experts_are_loaded_not_the_active_ones() -> None:
    """AlexsJones/llmfit#230, T5f: an MoE by its active parameters is a tenth of what it is."""
    found = plan(QWEN_MOE, tp=1, pp=1, ep=1, dp=1, context=4096)
    assert found.chosen is not None
    assert found.chosen.per_device.weights > 2 * 30e9


def test_an_architecture_that_nobody_knows_is_not_taken_for_a_dense_one() -> None:
    """T5f."""
    raw = config(model_type="brand_new_moe", num_experts=64, num_experts_per_tok=4, expert_ffn_hidden_size=512)
    with pytest.raises(InputError, match="brand_new_moe"):
        plan(raw)


def test_expert_parallel_ranks_hold_their_share() -> None:
    """aiconfigurator PR#1390: Kimi-K2.5's 384 experts were counted whole on each of eight devices."""
    shares = {ep: constraints_of(edited(K25)).weights.stages(Sizes(1, 1, ep, ep))[0] for ep in (1, 8)}
    model = model_of(edited(K25))
    experts = sum(group.bytes for group in model.stored.groups if group.rule.rule.kind == "routed_expert")
    assert shares[1] - shares[8] == experts - experts // 8
    assert shares[8] < shares[1] / 6


def test_what_does_not_fit_is_not_given_a_speed() -> None:
    """aiconfigurator PR#509: Llama-3.1-405B on one H100 was given a time to its first token."""
    found = plan(LLAMA_405B, devices=1, tp=1)
    assert not found.feasible
    assert found.chosen is None
    assert found.minimum_devices is not None
    assert found.minimum_devices > 8
    assert f"{found.minimum_devices} devices would do" in found.reason


def test_too_large_for_two_devices_says_how_many() -> None:
    """inference-sim#624: DeepSeek-V3 with tp 2 on H100s: 1,313 GiB in 16 bits against 144."""
    found = plan(edited(DEEPSEEK), weight_dtype="bfloat16", devices=2, tp=2)
    assert not found.feasible
    free = plan(edited(DEEPSEEK), weight_dtype="bfloat16", devices=2)
    assert free.minimum_devices is not None
    assert 17 <= free.minimum_devices <= 24
    assert plan(edited(DEEPSEEK), weight_dtype="bfloat16", devices=free.minimum_devices).feasible
    assert free.minimum_layout["tp"] * free.minimum_layout["pp"] * free.minimum_layout["dp"] == free.minimum_devices


def test_52_heads_on_eight_small_devices() -> None:
    """T5a: 65 GB of Llama on 8 x 16 GB: not tp 8, but tp 4 x pp 2."""
    raw = config(
        num_hidden_layers=60, hidden_size=6656, intermediate_size=17920, vocab_size=32000, num_attention_heads=52,
        num_key_value_heads=52, max_position_embeddings=2048,
    )  # fmt: skip
    found = plan(raw, devices=8, device_memory=16 * 10**9, context=512)
    assert found.chosen is not None, found.reason
    assert (found.chosen.tp, found.chosen.pp) == (4, 2)
    refused = next(r for r in found.rejected if r.tp == 8)
    assert (refused.dimension, refused.size, refused.divisor) == ("num_attention_heads", 52, 8)


def test_671_gb_on_four_devices() -> None:
    """T5b."""
    found = plan(edited(DEEPSEEK), devices=4)
    assert not found.feasible
    assert found.minimum_devices is not None
    assert 9 <= found.minimum_devices <= 16
    assert "does not fit on 4 devices" in found.reason


def vision(count: int, **language: Any) -> dict[str, Any]:
    """A vision tower of so many heads before a language model."""
    raw = text(QWEN_VL, **language)
    return {**raw, "vision_config": {**raw["vision_config"], "num_heads": count, "hidden_size": count * 64}}


def test_a_tower_that_does_not_divide_is_whole_on_every_rank() -> None:
    """T5d: 16 vision heads on tp 3; the language model is divided by its own heads."""
    raw = vision(16, num_attention_heads=24, num_key_value_heads=6, vocab_size=151872)
    constraints = constraints_of(raw)
    assert constraints.obstacles(Sizes(3, 1)) == []
    assert "vision" in constraints.notes(Sizes(3, 1))[0]
    assert constraints.notes(Sizes(2, 1)) == []
    found = plan(raw, tp=3, devices=3, context=4096)
    assert found.chosen is not None, found.reason
    towers = [placed for placed in found.placement if placed.what == "vision"]
    assert "whole on each rank" in towers[0].how
    assert "--mm-encoder-tp-mode" in found.engines["vllm"]


def test_an_encoder_of_20_heads_is_whole_on_each_of_eight_ranks() -> None:
    """T5d: of sound, by rules that say so."""
    model = model_of(vision(20))
    rules = {
        rule: dataclasses.replace(rule, rule=rule.rule.model_copy(update={"kind": "audio"}))
        if rule.rule.kind == "vision"
        else rule
        for rule in model.structure.family.rules
    }
    bound = dataclasses.replace(model.structure.family, rules=tuple(rules.values()))
    groups = tuple(dataclasses.replace(group, rule=rules[group.rule]) for group in model.stored.groups)
    weights = Weights(bound, dataclasses.replace(model.stored, groups=groups))
    assert Constraints(model.structure, weights).obstacles(Sizes(8, 1)) == []
    assert weights.whole_towers(8)
    encoder = sum(group.bytes for group in weights.groups if group.kind == "audio")
    assert sum(weights.rank_bytes(group, Sizes(8, 1)) for group in weights.groups if group.kind == "audio") == encoder


def test_one_vision_head_does_not_keep_the_language_model_whole() -> None:
    """T5e, gpustack#2642: the greatest common divisor of 16 heads and 1."""
    raw = vision(1)
    assert constraints_of(raw).obstacles(Sizes(8, 1)) == []
    found = plan(raw, context=4096, tp=8)
    assert found.feasible


def test_a_million_tokens_that_do_not_fit_are_refused_with_what_does() -> None:
    """T6."""
    raw = edited(LLAMA_8B, max_position_embeddings=1 << 20)
    found = plan(raw, devices=1, context=1 << 20)
    assert not found.feasible
    assert 0 < found.max_context < 1 << 20
    assert f"{found.max_context:,}" in found.reason
    assert plan(raw, devices=1, context=found.max_context).feasible


# Pipelines


@pytest.mark.parametrize(
    ("layers", "pp", "counts"),
    [(61, 4, [15, 15, 16, 15]), (94, 4, [23, 24, 24, 23]), (43, 2, [22, 21]), (61, 8, [7, 7, 8, 8, 8, 8, 8, 7])],
)
def test_stages_are_the_engines(layers: int, pp: int, counts: list[int]) -> None:
    """vllm PR#46217; torchtitan#963: no layer is dropped."""
    stages = pipeline_stages(layers, pp)
    assert [end - first for first, end in stages] == counts
    assert [n for first, end in stages for n in range(first, end)] == list(range(layers))


def test_the_worst_stage_counts() -> None:
    """vllm PR#6115, sglang#13282: DeepSeek-V3.1 at tp 1, pp 8: stages of 7 and of 8 layers, three layers dense."""
    weights = constraints_of(edited(DEEPSEEK)).weights
    by_stage = weights.stages(Sizes(1, 8))
    found = plan(edited(DEEPSEEK), tp=1, pp=8, ep=1, dp=1, devices=8, device_memory=1 << 40, context=16384)
    assert found.chosen is not None
    memory = found.chosen.per_device
    assert memory.weights == by_stage[memory.stage]
    assert memory.kv_cache == 8 * (512 + 64) * 2 * 16384 or memory.stage == 7
    assert max(by_stage) > 1.1 * min(by_stage)


# What hardware can hold (T18)


def without(target: Target, *formats: str) -> Target:
    lacking = {name: Format(compute="none", source="a test") for name in formats}
    return target.model_copy(update={"formats": {**target.formats, **lacking}})


@pytest.mark.parametrize(
    ("path", "form", "times"),
    [(DEEPSEEK, "fp8_block", 2), (GPT_OSS, "mxfp4", 4), (NVFP4, "nvfp4", 4)],
)
def test_what_a_target_cannot_hold_is_computed_out(path: Any, form: str, times: int) -> None:
    b200 = load_target("b200")
    asked = {"target": "b200", "devices": 64, "context": 4096}
    kept = plan(path, **asked)
    plain = plan(path, spec=without(b200, *b200.formats), **asked)
    assert kept.weight_dtype == form
    assert kept.convert_to is None
    assert plain.convert_to == plain.weight_dtype == "bfloat16"
    assert form in plain.weight_reason
    assert plain.feasible
    sizes = Sizes(8, 1, 8)
    weights = constraints_of(edited(path)).weights
    structure = structure_of(edited(path), "config.json")
    out = Weights(weights.bound, converted(weights.stored, structure_of_same(weights, structure), "bfloat16"))
    assert times * 0.8 < out.stages(sizes)[0] / weights.stages(sizes)[0] <= times
    assert plain.minimum_devices is not None
    assert kept.minimum_devices is not None
    assert plain.minimum_devices > kept.minimum_devices


def structure_of_same(weights: Weights, structure: Any) -> Any:
    """The structure with the rules that the weights are of."""
    return dataclasses.replace(structure, family=weights.bound)


def test_a_model_in_four_bits_needs_another_plan_on_devices_of_sixteen() -> None:
    """T18: Kimi-K3 is 1.5 TB as stored and 5.6 TB in 16 bits."""
    h200 = load_target("h200")
    asked = {"target": "h200", "devices": 16, "context": 4096, "concurrency": 4}
    assert plan(CONFIGS / "moonshotai__Kimi-K3.json", **asked).feasible
    plain = plan(CONFIGS / "moonshotai__Kimi-K3.json", spec=without(h200, "mxfp4"), **asked)
    assert not plain.feasible
    assert plain.minimum_devices is not None
    assert plain.minimum_devices > 40


def test_another_fp8_is_noted() -> None:
    spec = load_target("h200").model_copy(update={"fp8_format": Fp8Format(name="float8_e4m3fnuz", source="a test")})
    found = plan(QWEN_235B_FP8, target="h200", spec=spec, context=4096)
    assert any("float8_e4m3fnuz" in note for note in found.notes)
    assert not any("fnuz" in note for note in plan(QWEN_235B_FP8, target="h200", context=4096).notes)


def test_a_format_that_nobody_tells_of_is_not_checked() -> None:
    h200 = load_target("h200")
    known = {name: held for name, held in h200.formats.items() if name != "fp8_block"}
    found = plan(QWEN_235B_FP8, target="h200", spec=h200.model_copy(update={"formats": known}), context=4096)
    assert found.feasible
    assert found.convert_to is None
    assert "formats.fp8_block" in found.unchecked


def test_a_float_that_the_target_lacks_is_refused_with_the_way_out() -> None:
    h100 = load_target("h100")
    spec = h100.model_copy(update={"dtypes": h100.dtypes.model_copy(update={"weights": ("float16",)})})
    found = plan(LLAMA_8B, spec=spec)
    assert not found.feasible
    assert "does not support bfloat16; --weight-dtype may be float16" in found.reason
    assert plan(LLAMA_8B, spec=spec, weight_dtype="fp16").feasible


def test_reading_weights_from_the_host_is_advice_with_its_price() -> None:
    asked = {"devices": 1, "context": 1024, "device_memory": 40 * GIB}
    found = plan(
        heads(64, 8, hidden_size=8192, num_hidden_layers=20, intermediate_size=28672, vocab_size=128256), **asked
    )
    assert not found.feasible or found.offload is None
    large = plan(LLAMA_70B, devices=2, context=1024)
    if large.feasible:
        large = plan(LLAMA_70B, devices=1, context=1024)
    assert large.offload is not None
    link = load_target("h100").host_link
    assert link is not None
    assert large.offload.seconds_per_token == pytest.approx(large.offload.bytes_per_device / link.value)
    assert large.chosen is None


def test_cases_have_names_of_their_own() -> None:
    named = [(case[0], case[2]) for case in DIVISIBILITY]
    assert all(a != b for a, b in itertools.combinations(named, 2))


PUBLISHED = sorted(path for path in CONFIGS.glob("*.json") if not path.stem.endswith("_hf_quant"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_every_published_config_is_planned(path: Path) -> None:
    found = plan(path, target="h200", devices=16, tp=8, concurrency=4, context=8192)
    assert found.feasible == (found.chosen is not None)
    assert found.minimum_devices is not None
    assert found.feasible == (found.minimum_devices <= 16)
    if found.chosen:
        memory = found.chosen.per_device
        assert memory.total == memory.weights + memory.kv_cache + memory.activations + memory.overhead
        assert {"vllm", "sglang"} == set(found.engines)
        assert found.chosen.seconds_per_token is not None
