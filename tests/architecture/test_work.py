"""FLOPs and bytes, against traces of the real modules on the meta device (transformers 5.24, 512 tokens, batch 1).

What the traces count otherwise is put right by formula: they take the scores of all pairs where causal attention needs
half of them and the diagonal.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.parallel import Sizes
from day0.architecture.roofline import arithmetic_dtype, bounds, hotspots, least_seconds
from day0.architecture.stored import stored_from_config
from day0.architecture.structure import Structure, structure_of
from day0.architecture.work import ClassWork, Step, WorkModel, touched
from tests.architecture.data import DATA, LLAMA_405B, config, read

WHOLE = Sizes(1, 1)
BYTES: dict[Any, float] = {"cache": 2, "index": 2, "state": 4, "conv": 2}
PREFILL, DECODE = Step(1, 512, 0), Step(1, 1, 512)


def model_of(raw: dict[str, Any]) -> WorkModel:
    structure = structure_of(raw, "config.json")
    return WorkModel(structure, stored_from_config(structure, None), BYTES)


def published(name: str) -> WorkModel:
    raw = read(DATA / f"configs/{name}.json")
    return model_of({key: value for key, value in raw.items() if key != "quantization_config"})


def all_pairs(structure: Structure, tokens: int) -> float:
    """How much more the scores of all pairs cost than the causal ones, over all layers of full attention."""
    causal = sum(len(e.layers) * e.attention.flops(tokens, 0) for e in structure.attention if not e.mtp)
    return causal * 2 * tokens / (tokens + 1) - causal


SMALL = model_of(config())


def test_decode_flops_are_those_of_a_trace() -> None:
    model = model_of(read(LLAMA_405B))
    assert model.rank_work(DECODE, WHOLE).flops / 1e9 == pytest.approx(811.7, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        ("meta-llama__Meta-Llama-3.1-405B", 413_455, 811.7),
        ("Qwen__Qwen3-235B-A22B", 22_257, 44.7),
    ],
)
def test_a_trace_of_grouped_query_attention(name: str, prefill: float, decode: float) -> None:
    model = published(name)
    counted = model.rank_work(PREFILL, WHOLE).flops + all_pairs(model.structure, PREFILL.new)
    assert counted / 1e9 == pytest.approx(prefill, rel=2e-3)
    assert model.rank_work(DECODE, WHOLE).flops / 1e9 == pytest.approx(decode, rel=2e-3)


def test_latent_attention_is_counted_as_engines_compute_it() -> None:
    """The trace of DeepSeek-V3's decode step has 1,050 of its 1,124 GFLOP in expanding the latents of all 513 tokens,
    where engines work on the latent (512 + 64) itself: dearer scores, and one token's expansion."""
    decode = published("deepseek-ai__DeepSeek-V3").rank_work(DECODE, WHOLE)
    layers, heads, tokens = 61, 128, 513
    dearer = 2 * layers * heads * tokens * ((576 + 512) - (192 + 128)) / 1e9
    assert decode.flops / 1e9 == pytest.approx(1_123.8 - 1_050 * 512 / 513 + dearer, rel=2e-3)
    prefill = published("deepseek-ai__DeepSeek-V3").rank_work(PREFILL, WHOLE)
    assert prefill.flops / 512 / 1e9 == pytest.approx(73.96, rel=0.02)


def test_an_output_head_is_counted_for_the_last_token_alone() -> None:
    head = {part.name: part.flops for part in SMALL.rank_work(Step(3, 100, 0), WHOLE).classes}["head"]
    assert head == 2 * 3 * 500 * 64


def test_a_decode_step_reads_all_weights_but_the_embedding_and_the_whole_cache() -> None:
    done = SMALL.rank_work(Step(4, 1, 99), WHOLE)
    weights = sum(part.weight_bytes for part in done.classes)
    assert weights == (SMALL.structure.total - (500 - 4) * 64) * 2
    assert sum(part.cache_bytes for part in done.classes) == 4 * 100 * 3 * 2 * 2 * 8 * 2


@pytest.mark.parametrize("name", ["Qwen__Qwen3-235B-A22B", "deepseek-ai__DeepSeek-V3", "moonshotai__Kimi-K3"])
def test_experts_touched_by_a_step_are_an_expectation(name: str) -> None:
    model = published(name)
    routing = next(r for r in model.structure.routing if not r.mtp)
    one = touched(routing, 1)
    assert one == pytest.approx(routing.per_token / routing.experts)
    assert touched(routing, 10_000) == pytest.approx(1.0, abs=1e-6)
    assert one < touched(routing, 8) < 8 * one
    reads = [_experts(model, sequences) for sequences in (1, 8, 64, 4096)]
    assert reads == sorted(reads)
    assert reads[0] == pytest.approx(one * reads[-1], rel=1e-6)


def _experts(model: WorkModel, sequences: int) -> float:
    classes = model.rank_work(Step(sequences, 1, 10), WHOLE).classes
    return sum(part.weight_bytes for part in classes if part.name == "experts")


@pytest.mark.parametrize(
    "sizes", [Sizes(8, 1), Sizes(4, 2), Sizes(1, 1, ep=8, dp=8), Sizes(8, 1, ep=8), Sizes(2, 1, ep=8, dp=4)]
)
@pytest.mark.parametrize("name", ["Qwen__Qwen3-235B-A22B", "deepseek-ai__DeepSeek-V3"])
def test_ranks_together_do_at_least_the_whole_work(name: str, sizes: Sizes) -> None:
    """Every attention replica has its own tokens, so it is the whole of their work that is divided."""
    model = published(name)
    whole = model.rank_work(Step(8 * sizes.group_replicas, 1, 4096), WHOLE)
    ranks = sum(model.rank_work(Step(8, 1, 4096), sizes, stage).flops * sizes.stage_ranks for stage in range(sizes.pp))
    assert whole.flops * 0.999 <= ranks <= whole.flops * 2.5


def test_an_expert_is_computed_once_however_ranks_are_laid_out() -> None:
    model = published("Qwen__Qwen3-235B-A22B")
    whole = _expert_flops(model, Step(64, 1, 0), WHOLE)
    assert _expert_flops(model, Step(8, 1, 0), Sizes(1, 1, ep=8, dp=8)) * 8 == pytest.approx(whole)
    assert _expert_flops(model, Step(64, 1, 0), Sizes(8, 1)) * 8 == pytest.approx(whole)
    assert _expert_flops(model, Step(64, 1, 0), Sizes(8, 1, ep=8)) * 8 == pytest.approx(whole)


def _expert_flops(model: WorkModel, step: Step, sizes: Sizes) -> float:
    return sum(part.flops for part in model.rank_work(step, sizes).classes if part.name == "experts")


def test_messages_of_a_layout() -> None:
    model = published("Qwen__Qwen3-235B-A22B")
    step = Step(4, 1, 100)
    assert model.rank_work(step, WHOLE).collectives == ()
    tensor = {(c.kind, c.name): c for c in model.rank_work(step, Sizes(8, 1)).collectives}
    assert tensor["all_reduce", "projections"].count == 94
    assert tensor["all_reduce", "projections"].bytes == 4 * 4096 * 2
    expert = {(c.kind, c.name): c for c in model.rank_work(step, Sizes(1, 1, ep=8, dp=8)).collectives}
    assert expert["all_to_all", "experts"].count == 2 * 94
    assert expert["all_to_all", "experts"].bytes == 4 * 4096 * 2 * 8
    pipeline = {(c.kind, c.name) for c in model.rank_work(step, Sizes(1, 2)).collectives}
    assert pipeline == {("send", "pipeline")}


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300))
def test_prefill_then_decode_scores_what_one_prefill_scores(first: int, more: int) -> None:
    scores = SMALL.structure.attention[0].attention.flops
    stepwise = scores(first, 0) + sum(scores(1, first + i) for i in range(more))
    assert stepwise == scores(first + more, 0) == scores(first, 0) + scores(more, first)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 64), st.integers(1, 4096), st.integers(0, 100_000), st.sampled_from([1, 2, 4]))
def test_more_never_costs_less(sequences: int, new: int, past: int, tp: int) -> None:
    model, sizes = SMALL, Sizes(tp, 1)
    base = model.rank_work(Step(sequences, new, past), sizes)
    for step in (Step(sequences + 1, new, past), Step(sequences, new + 1, past), Step(sequences, new, past + 1)):
        more = model.rank_work(step, sizes)
        assert more.flops >= base.flops
        assert more.bytes >= base.bytes


def test_the_roofline_is_the_longer_of_computing_and_moving_class_by_class() -> None:
    classes = (
        ClassWork("experts", "fp8_block", 100.0, 10.0, 0.0, 0.0, 1),
        ClassWork("attention", "bfloat16", 10.0, 0.0, 90.0, 10.0, 1),
    )
    found = bounds(classes, {"bfloat16": 1.0, "fp8": 2.0}, 1.0)
    assert [(b.seconds, b.by) for b in found] == [(50.0, "compute"), (100.0, "memory")]
    assert least_seconds(found) == 150.0
    assert [b.name for b in hotspots(found, 0.6)] == ["attention"]
    assert least_seconds(bounds(classes, {}, None)) is None


def test_what_a_target_does_not_compute_in_is_computed_out() -> None:
    assert arithmetic_dtype("mxfp4", {"fp8": 1.0, "bfloat16": 1.0}) == "bfloat16"
    assert arithmetic_dtype("nvfp4", {"nvfp4": 1.0, "bfloat16": 1.0}) == "nvfp4"
    assert arithmetic_dtype("int4", {"int4": 1.0, "bfloat16": 1.0}) == "bfloat16"
