"""Times of steps: what they are the sum of, what they cannot be less than, and how far they are from measured ones."""

from __future__ import annotations

import functools
import json
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import planner
from benchmarks.planner_grid import MAIN
from day0.architecture.attention.kinds import KINDS
from day0.architecture.parallel import Sizes
from day0.architecture.roofline import bounds, least_seconds
from day0.architecture.work import Collective, Step, WorkModel
from day0.errors import InputError
from day0.target import Target, load_target
from tasks.plan import collectives
from tasks.plan.figures import Figures, figures_of
from tasks.plan.layout import sizes_of
from tasks.plan.speed import LAUNCHES, SpeedModel
from tests.architecture.data import DATA, LLAMA_8B, LLAMA_70B, config, read
from tests.plan.asking import model_of, plan

H200 = load_target("h200")
K3 = DATA / "configs/moonshotai__Kimi-K3.json"
QWEN_MOE = DATA / "configs/Qwen__Qwen3-30B-A3B.json"
GLM_5 = DATA / "configs/zai-org__GLM-5.json"
BYTES: dict[Any, float] = {"cache": 2, "index": 2, "state": 4, "conv": 2}


def speed(raw: dict[str, Any], target: Target = H200) -> SpeedModel:
    model = model_of(raw)
    return SpeedModel(WorkModel(model.structure, model.stored, BYTES), target)


@functools.cache
def published(path: Path) -> SpeedModel:
    return speed(read(path))


LAYOUTS = [
    (LLAMA_8B, Sizes(1, 1)),
    (LLAMA_70B, Sizes(8, 1)),
    (LLAMA_70B, Sizes(4, 3)),
    (QWEN_MOE, Sizes(4, 1, 4)),
    (QWEN_MOE, Sizes(1, 1, 8, 8)),
    (QWEN_MOE, Sizes(2, 1, 32, 16)),
    (GLM_5, Sizes(8, 2, 16, 2)),
    (K3, Sizes(8, 4, 8)),
]


def test_every_kind_of_attention_has_its_launches() -> None:
    assert set(LAUNCHES) == set(KINDS)


@pytest.mark.parametrize(("path", "sizes"), LAYOUTS)
def test_a_time_is_the_sum_of_its_terms(path: Path, sizes: Sizes) -> None:
    model = published(path)
    for found in (
        model.decode_seconds(sizes, 5000, 12),
        model.prefill_seconds(sizes, 4000, 2),
        model.prefill_seconds(sizes, 4000, chunk=512),
    ):
        assert found is not None
        assert found.seconds == pytest.approx(sum(found.terms.values()))
        assert {"projections", "attention", "norms"} <= set(found.terms)
        assert ("all_reduce" in found.terms) == (sizes.tp > 1)
        assert ("all_to_all" in found.terms) == (sizes.ep > sizes.tp)
        assert ("send" in found.terms) == (sizes.pp > 1)


@pytest.mark.parametrize(("path", "sizes"), LAYOUTS)
@pytest.mark.parametrize("step", [Step(1, 1, 1000), Step(64, 1, 8000), Step(2, 2048, 0)])
def test_no_step_is_quicker_than_the_roofline(path: Path, sizes: Sizes, step: Step) -> None:
    model = published(path)
    assert H200.bandwidth is not None
    rates = {name: rate.value for name, rate in H200.flops.items()}
    for stage in model.stages(step, sizes):
        least = least_seconds(bounds(stage.rank.classes, rates, H200.bandwidth.value))
        assert least is not None
        assert sum(model.stage_terms(stage, sizes, model.figures).values()) > least


@pytest.mark.parametrize(("path", "sizes"), LAYOUTS)
def test_stages_that_are_alike_are_computed_once_and_all_are_there(path: Path, sizes: Sizes) -> None:
    model = published(path)
    step = Step(4, 1, 1000)
    each = [model.work.rank_work(step, sizes, stage).flops for stage in range(sizes.pp)]
    assert sum(s.count * s.rank.flops for s in model.stages(step, sizes)) == pytest.approx(sum(each))
    assert sum(s.count for s in model.stages(step, sizes)) == sizes.pp


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(LAYOUTS), st.integers(2, 60_000), st.integers(1, 200))
def test_more_is_never_quicker(layout: tuple[Path, Sizes], tokens: int, sequences: int) -> None:
    model, sizes = published(layout[0]), layout[1]

    def decode(context: int, count: int) -> float:
        found = model.decode_seconds(sizes, context, count)
        assert found is not None
        return found.seconds

    def prefill(count: int) -> float:
        found = model.prefill_seconds(sizes, count)
        assert found is not None
        return found.seconds

    assert decode(tokens, sequences) <= decode(tokens + 100, sequences) * (1 + 1e-9)
    assert decode(tokens, sequences) <= decode(tokens, sequences + sizes.pp) * (1 + 1e-9)
    assert prefill(tokens) <= prefill(2 * tokens) * (1 + 1e-9)


def test_by_hand() -> None:
    """One layer of a small Llama on a target of round figures."""
    raw = config(num_hidden_layers=1)
    target = H200.model_copy(
        update={
            "bandwidth": H200.bandwidth.model_copy(update={"value": 1e6}) if H200.bandwidth else None,
            "flops": {},  # nothing waits for computing
        }
    )
    model = speed(raw, target)
    figures = Figures(memory=0.5, attention=0.25, kernel_seconds=1e-3)
    (stage,) = model.stages(Step(3, 1, 100), Sizes(1, 1))
    terms = model.stage_terms(stage, Sizes(1, 1), figures)
    hidden, mlp, kv = 64, 192, 16
    weights = 2 * (2 * hidden * hidden + 2 * hidden * kv)  # q and o, k and v, 2 bytes each
    moved = 3 * 2 * (2 * (hidden + hidden) + 2 * (hidden + kv))  # in and out of each, of 3 tokens
    assert terms["projections"] == pytest.approx((weights + moved) / 0.5e6 + 2e-3)  # qkv are one product, o another
    assert terms["attention"] == pytest.approx(3 * 101 * 2 * kv * 2 / 0.25e6 + LAUNCHES["full"] * 1e-3)
    assert terms["mlp"] == pytest.approx((2 * 3 * hidden * mlp + 3 * 2 * 3 * (hidden + mlp)) / 0.5e6 + 2e-3)


def test_the_slowest_stage_holds_up_the_others() -> None:
    model = speed(config(num_hidden_layers=4, vocab_size=128_000))
    sizes = Sizes(1, 4)
    found = model.decode_seconds(sizes, 100, 8)
    assert found is not None
    step = Step(2, 1, 100)
    each = [
        sum(model.stage_terms(s, sizes, model.figures).values())
        for s in model.stages(step, sizes)
        for _ in range(s.count)
    ]
    assert max(each) > sum(each) / 4 * 1.05  # the last has the head
    assert found.seconds == pytest.approx(4 * max(each))
    assert found.terms["bubble"] == pytest.approx(4 * max(each) - sum(each))
    alone = model.decode_seconds(sizes, 100, 1)
    assert alone is not None
    assert "bubble" not in alone.terms


def test_chunks_pass_a_pipeline_one_after_another() -> None:
    model = published(LLAMA_70B)
    sizes = Sizes(4, 4)
    whole, chunked = model.prefill_seconds(sizes, 16_000), model.prefill_seconds(sizes, 16_000, chunk=1000)
    assert whole is not None
    assert chunked is not None
    assert chunked.terms["overlap"] < 0
    assert (
        0.25 < chunked.seconds / whole.seconds < 0.5
    )  # four stages at work at once, but for the beginning and the end
    flat = Sizes(4, 1)
    one, many = model.prefill_seconds(flat, 16_000), model.prefill_seconds(flat, 16_000, chunk=1000)
    assert one is not None
    assert many is not None
    assert 1 < many.seconds / one.seconds < 1.5
    assert "overlap" not in many.terms


def test_an_unknown_bandwidth_predicts_nothing() -> None:
    unknown = H200.model_copy(update={"bandwidth": None})
    model = speed(read(LLAMA_8B), unknown)
    assert model.decode_seconds(Sizes(1, 1), 100, 1) is None
    assert model.prefill_seconds(Sizes(1, 1), 100, chunk=10) is None
    assert model.serving(Sizes(1, 1), 100, 10, 1) is None


def test_experts_over_nodes_wait_for_the_slow_links() -> None:
    near, far = published(QWEN_MOE), Sizes(1, 1, 16, 16)
    within = near.decode_seconds(Sizes(1, 1, 8, 8), 1000, 64)
    beyond = near.decode_seconds(far, 1000, 64)
    assert within is not None
    assert beyond is not None
    assert beyond.terms["all_to_all"] > 2 * within.terms["all_to_all"]
    wide = H200.model_copy(update={"scale_up_devices": H200.devices_per_node.model_copy(update={"value": 16})})
    joined = speed(read(QWEN_MOE), wide).decode_seconds(far, 1000, 64)
    assert joined is not None
    assert joined.terms["all_to_all"] < beyond.terms["all_to_all"] / 2


def test_quantised_experts_compute_in_their_own_format() -> None:
    plain, quantised = (
        published(DATA / f"configs/{name}.json") for name in ("Qwen__Qwen3-30B-A3B", "Qwen__Qwen3-30B-A3B-FP8")
    )
    step, sizes = Step(256, 1, 10), Sizes(1, 1)
    figures = Figures(kernel_seconds=1e-12, quantised_seconds=1e-12, experts=1, quantised_experts=1)
    found = []
    for model in (plain, quantised):
        (stage,) = model.stages(step, sizes)
        found.append(model.stage_terms(stage, sizes, figures)["experts"])
    assert found[1] == pytest.approx(found[0] / 2, rel=0.01)  # half the bytes, twice the rate; scales are the rest


def test_mxfp4_is_widened_as_it_is_read() -> None:
    model, sizes = published(K3), Sizes(8, 1, 8)
    (stage,) = model.stages(Step(1, 1, 10), sizes)
    slow, quick = (
        model.stage_terms(stage, sizes, Figures(widened=share, kernel_seconds=1e-12))["experts"]
        for share in (0.25, 0.5)
    )
    assert slow == pytest.approx(2 * quick, rel=0.05)  # but for the little that is computed


def test_figures_of_a_target() -> None:
    assert figures_of(load_target("cpu")) == Figures()
    own = figures_of(H200)
    assert H200.efficiency.compute is not None
    assert own.compute == H200.efficiency.compute.value
    assert H200.scale_out_latency is not None
    assert own.scale_out_seconds == H200.scale_out_latency.value


@pytest.mark.parametrize(
    ("kind", "ranks", "devices", "dispatch", "expected"),
    [
        ("all_reduce", 8, 8, "gather", 6e-6 + 2 * 7 / 8 * 9e6 / (4.5e11 * 0.9)),
        ("all_reduce", 16, 16, "gather", 45e-6 + 2 * 15 / 16 * 9e6 / (5e10 * 0.9)),
        ("all_gather", 4, 4, "gather", 6e-6 + 3 * 9e6 / (4.5e11 * 0.9)),
        ("reduce_scatter", 4, 4, "gather", 6e-6 + 3 * 9e6 / (4.5e11 * 0.9)),
        # bytes are those of each token to 8 ranks
        ("all_to_all", 8, 8, "routed", 12e-6 + 7 / 8 * 9e6 / (4.5e11 * 0.9)),
        ("all_to_all", 8, 8, "gather", 12e-6 + 7 * 9e6 / 8 / (4.5e11 * 0.9)),
        # once to each of 2 nodes, half of which is the other one; or to all 15 others
        ("all_to_all", 16, 16, "routed", 45e-6 + 9e6 / 8 * 2 / 2 / (5e10 * 0.9)),
        ("all_to_all", 16, 16, "gather", 45e-6 + 15 * 9e6 / 8 / (5e10 * 0.9)),
        ("send", 2, 8, "gather", 6e-6 + 9e6 / (4.5e11 * 0.9)),
        ("send", 2, 16, "gather", 45e-6 + 9e6 / (5e10 * 0.9)),
    ],
)
def test_messages_by_hand(kind: Any, ranks: int, devices: int, dispatch: Any, expected: float) -> None:
    message = Collective(kind, "experts", ranks, 9e6, 3)
    figures = Figures(link=0.9, collective_seconds=6e-6, scale_out_seconds=45e-6)
    found = collectives.seconds(message, H200, figures, devices, copies=8, dispatch=dispatch)
    assert found == pytest.approx(3 * expected)


def test_an_unknown_link_is_left_out() -> None:
    message = Collective("all_reduce", "mlp", 8, 9e6, 1)
    unknown = H200.model_copy(update={"link_bandwidth": None})
    assert collectives.seconds(message, unknown, Figures(), 8) == Figures().collective_seconds


def test_a_server_s_rate_counts_its_prompts() -> None:
    model, sizes = published(QWEN_MOE), Sizes(1, 1, 4, 4)
    found = model.serving(sizes, 4000, 1000, 16)
    assert found is not None
    assert found.whole_seconds == pytest.approx(1000 * found.decode.seconds + 16 * found.prefill.seconds)
    assert found.tokens_per_second == pytest.approx(4 * 16 * 1000 / found.whole_seconds)
    assert found.per_device(sizes) == pytest.approx(found.tokens_per_second / 4)
    short = model.serving(sizes, 40, 1000, 16)
    assert short is not None
    assert short.tokens_per_second > found.tokens_per_second


def test_prompts_change_what_is_best_for_throughput() -> None:
    """With long prompts and short answers, layouts that compute prompts well win over those that only read well."""
    asked: dict[str, Any] = {"target": "h200", "devices": 16, "context": 5000, "concurrency": 320}
    asked["objective"] = "throughput"
    decode = plan(QWEN_MOE, **asked).chosen
    both = plan(QWEN_MOE, output=100, **asked).chosen
    assert decode is not None
    assert both is not None
    assert decode.tokens_per_second is not None
    assert both.tokens_per_second is not None
    assert both.tokens_per_second < decode.tokens_per_second
    found = published(QWEN_MOE).serving(sizes_of(both), 4900, 100, -(-320 // both.dp))
    assert found is not None
    assert both.tokens_per_second == pytest.approx(320 * 100 / found.whole_seconds)


def test_an_answer_longer_than_the_context_is_refused() -> None:
    with pytest.raises(InputError, match="an answer of 200 tokens leaves none of 100 for a prompt"):
        plan(QWEN_MOE, context=100, output=200)


def test_recorded_times_that_nothing_was_fitted_to() -> None:
    """The limits of benchmarks/planner.py, on the half of the recorded answers that the figures did not see."""
    recorded = json.loads(planner.DATA.read_text())
    models = planner.speed_models(recorded)
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for point in planner.points_of(recorded):
        if point.model in MAIN and not point.fitted:
            errors[point.model, point.phase].append(abs(planner.ours(models[point.model], point) / point.seconds - 1))
    assert {key: len(found) >= 10 for key, found in errors.items()} == {
        (model, phase): True for model in MAIN for phase in ("prefill", "decode")
    }
    for key, found in errors.items():
        assert statistics.median(found) <= planner.MEDIAN_LIMIT, key


def test_the_recorded_answers_hold_no_other_layout() -> None:
    recorded = json.loads(planner.DATA.read_text())
    for group in recorded["groups"]:
        sizes = Sizes(group["tp"], group["pp"], group["ep"] or 1, group["dp"])
        assert replace(sizes, dp=sizes.group_replicas) == sizes  # one worker
