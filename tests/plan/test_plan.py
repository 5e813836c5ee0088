"""Plans: what is chosen and what is said when a model does not fit; memory that adds up; what always holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.artifacts.plan import ParallelPlan
from day0.errors import CheckFailed, InputError
from day0.target import GIB, load_target, machine_memory
from day0.verdict import Check, Verdict
from tasks.plan.layout import plan_layout, sizes_of
from tasks.plan.search import different
from tasks.plan.settings import PlanSettings
from tests.architecture.data import DATA, LLAMA_8B, LLAMA_70B, LLAMA_405B, config, write_config
from tests.plan.asking import any_profile, constraints_of, edited, model_of, plan

H100 = load_target("h100")
CONFIGS = DATA / "configs"
K3 = CONFIGS / "moonshotai__Kimi-K3.json"
QWEN_MOE = CONFIGS / "Qwen__Qwen3-30B-A3B.json"


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 40))
def test_every_layer_is_in_one_stage(layers: int, pp: int) -> None:
    stages = pipeline_stages(layers, pp)
    assert [layer for first, end in stages for layer in range(first, end)] == list(range(layers))


def test_too_few_devices_are_told_how_many_it_takes() -> None:
    found = plan(LLAMA_405B, devices=4)
    assert not found.feasible
    assert found.chosen is None
    assert found.engine_args == found.engines == {}
    assert found.verdict is Verdict.FAIL
    assert found.minimum_devices is not None
    assert f"{found.minimum_devices} devices would do" in found.reason
    assert "weights" in found.reason
    assert plan(LLAMA_405B, devices=found.minimum_devices).feasible
    assert not plan(LLAMA_405B, devices=found.minimum_devices - 1).feasible


def test_a_context_that_does_not_fit_is_told_the_longest_that_does() -> None:
    asked = {"devices": 2, "tp": 2}
    found = plan(LLAMA_70B, context=131072, **asked)
    assert not found.feasible
    assert 0 < found.max_context < 131072
    assert f"{found.max_context:,}" in found.reason
    assert plan(LLAMA_70B, context=found.max_context, **asked).feasible
    assert not plan(LLAMA_70B, context=found.max_context + 1, **asked).feasible
    shorter = plan(LLAMA_70B, **asked)
    assert (shorter.feasible, shorter.context) == (True, found.max_context)


def test_given_sizes_are_checked_not_changed() -> None:
    found = plan(LLAMA_8B, tp=2, pp=2)
    assert found.chosen is not None
    assert {(layout.tp, layout.pp) for layout in (found.chosen, *found.alternatives)} == {(2, 2)}
    wrong = plan(LLAMA_8B, tp=3)
    assert not wrong.feasible
    assert wrong.rejected[0].dimension == "num_attention_heads"
    assert plan(LLAMA_8B, ep=2).rejected[0].dimension == "num_experts"
    assert plan(LLAMA_8B, tp=4, devices=2).rejected[0].dimension == "devices"
    assert plan(LLAMA_8B, tp=1, pp=33).rejected[0].dimension == "num_hidden_layers"
    spread = plan(QWEN_MOE, tp=2, ep=8, concurrency=1, context=4096)
    assert spread.chosen is not None
    assert sizes_of(spread.chosen) == Sizes(2, 1, 8, 4)


def test_tensor_parallelism_over_nodes_has_to_be_asked_for() -> None:
    found = plan(LLAMA_405B, devices=16, context=8192)
    assert found.chosen is not None
    assert found.chosen.tp <= 8
    assert any(r.tp == 16 and "span nodes" in r.reason for r in found.rejected)
    assert plan(LLAMA_405B, devices=16, context=8192, tp=16).feasible


def test_groups_that_do_not_divide_a_node_stay_within_one() -> None:
    """tp 3 on nodes of eight: the third group of two nodes would have a rank on the other one."""
    raw = config(num_attention_heads=9, num_key_value_heads=3, hidden_size=576, vocab_size=49152, num_hidden_layers=30)
    found = plan(raw, devices=32, concurrency=64, context=1024)
    assert found.chosen is not None
    for layout in (found.chosen, *found.alternatives):
        assert 8 % layout.tp == 0 or layout.devices <= 8
    assert plan(raw, devices=32, tp=3, dp=8, concurrency=64, context=1024).feasible


def test_weights_that_are_as_asked_for_are_not_converted() -> None:
    assert plan(LLAMA_8B, weight_dtype="bfloat16").convert_to is None
    kept = plan(CONFIGS / "deepseek-ai__DeepSeek-V3.json", target="h200", devices=16, weight_dtype="fp8", context=4096)
    assert kept.convert_to is None
    made = plan(QWEN_MOE, weight_dtype="fp8", context=4096)
    assert made.convert_to == "fp8"
    assert "61.1 GB of weights become 31." in made.weight_reason


def test_the_fastest_token_comes_first() -> None:
    found = plan(LLAMA_8B, concurrency=8, context=4096)
    assert found.chosen is not None
    assert found.chosen.seconds_per_token is not None
    assert all(found.chosen.seconds_per_token <= (other.seconds_per_token or 0) for other in found.alternatives)
    assert sum(found.chosen.terms.values()) == pytest.approx(found.chosen.seconds_per_token)


def test_objectives_choose_differently() -> None:
    asked: dict[str, Any] = {"devices": 32, "concurrency": 64, "context": 4096, "target": "h200"}
    chosen = {}
    for objective in ("latency", "throughput", "cost"):
        found = plan(QWEN_MOE, objective=objective, **asked).chosen
        assert found is not None
        assert found.tokens_per_second is not None
        chosen[objective] = found
    assert (chosen["latency"].seconds_per_token or 0) <= (chosen["cost"].seconds_per_token or 0)
    rate = {name: (layout.tokens_per_second or 0) for name, layout in chosen.items()}
    assert rate["throughput"] == max(rate.values())
    assert rate["cost"] / chosen["cost"].devices == max(rate[n] / chosen[n].devices for n in chosen)
    assert chosen["cost"].devices < chosen["throughput"].devices


def test_alternatives_differ_in_more_than_their_number_of_replicas() -> None:
    found = plan(edited(K3), target="h200", devices=64, concurrency=32, context=32768)
    assert found.chosen is not None
    layouts = (found.chosen, *found.alternatives)
    assert len(layouts) == 5
    assert len({(a.tp, a.ep > a.tp, a.dcp > 1, a.pp) for a in layouts}) == 5
    assert different([], 5) == []


def test_rejections_are_few_and_each_says_something_else() -> None:
    """Three trillion parameters on 512 devices: some ten thousand layouts are looked at."""
    found = plan(edited(K3), target="h200", devices=512, concurrency=32)
    assert found.feasible
    assert 0 < len(found.rejected) < 40
    said = [(r.dimension, r.size, r.divisor) for r in found.rejected if r.dimension != "memory"]
    assert len(said) == len(set(said))
    assert all(r.reason and r.constraint for r in found.rejected)


def test_memory_is_that_of_the_worst_device_and_adds_up() -> None:
    found = plan(LLAMA_70B, devices=8, tp=2, pp=3, context=4096, concurrency=4, dp=1)
    assert found.chosen is not None
    memory = found.chosen.per_device
    assert memory.total == memory.weights + memory.kv_cache + memory.activations + memory.overhead <= memory.capacity
    assert found.chosen.stages == ((0, 27), (27, 54), (54, 80))
    assert memory.kv_cache == 27 * 4 * 4096 * 4 * 2 * 128 * 2
    assert memory.fragmentation == 0
    assert memory.activations_without_reuse is not None
    assert memory.activations_without_reuse > memory.activations
    by_stage = constraints_of(edited(LLAMA_70B)).weights.stages(Sizes(2, 3))
    assert memory.weights == by_stage[memory.stage] == max(by_stage) > min(by_stage)
    assert found.engine_args["kv_cache_bytes"] == memory.kv_cache + 27 * 16 * 4 * 2 * 128 * 2


def test_part_of_a_block_is_fragmentation() -> None:
    found = plan(LLAMA_8B, context=4097, tp=1, pp=1, dp=1, concurrency=2)
    assert found.chosen is not None
    assert found.chosen.per_device.fragmentation == 2 * 15 * 32 * 2 * 8 * 128 * 2


def test_rows_that_only_the_engine_adds_are_its_overhead() -> None:
    """Resharding to `hf` writes 500 rows; vLLM loads 512."""
    odd, even = (plan(config(vocab_size=n), tp=1, pp=1, dp=1, context=1024) for n in (500, 512))
    assert odd.chosen is not None
    assert even.chosen is not None
    assert even.chosen.per_device.weights - odd.chosen.per_device.weights == 2 * 12 * 64 * 2
    assert odd.chosen.per_device.overhead - even.chosen.per_device.overhead == 2 * 12 * 64 * 2


def test_concentrated_layers_are_placed() -> None:
    found = plan(CONFIGS / "deepseek-ai__DeepSeek-V3.json", target="h200", tp=8, pp=2, ep=8, dp=1, devices=16)
    placed = {(p.what, p.stage): p for p in found.placement}
    assert set(placed) == {("embedding", 0), ("dense layers (3)", 0), ("head", 1), ("multi-token prediction", 1)}
    assert placed["embedding", 0].bytes == 129280 * 7168 * 2 // 8
    assert "tp 8" in placed["dense layers (3)", 0].how
    tied = plan(CONFIGS / "Qwen__Qwen3-0.6B.json", tp=2, pp=2, dp=1)
    assert [(p.what, p.stage) for p in tied.placement] == [("embedding", 0), ("head", 1)]
    assert [p.what for p in plan(CONFIGS / "Qwen__Qwen3-0.6B.json", tp=2, pp=1, dp=1).placement] == ["embedding"]


def test_the_engines_arguments(tmp_path: Path) -> None:
    small = write_config(tmp_path, config(max_position_embeddings=1000))
    args = plan(small, target="cpu", concurrency=4, device_memory=16 * GIB).engine_args
    cache = 3 * 2 * 2 * 8 * 2  # layers, kv heads, key and value, head_dim, bytes: of one token
    assert args == {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "max_model_len": 1000,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "kv_cache_bytes": (4 * 1024 + 128) * cache,  # whole blocks of 128, and the null block
    }


def arguments(found: ParallelPlan, engine: str) -> dict[str, str]:
    """Option → value, "" for a flag."""
    given: dict[str, str] = {}
    for word in found.engines[engine]:
        if word.startswith("--"):
            name = word
            given[name] = ""
        else:
            given[name] = word
    return given


def test_data_parallel_attention_as_each_engine_counts_it() -> None:
    """vLLM's expert parallel size is tp x dp; SGLang's tp is all ranks of a stage."""
    found = plan(QWEN_MOE, target="h200", devices=16, tp=2, pp=1, ep=8, dp=8, concurrency=32, context=4096)
    vllm, sglang = arguments(found, "vllm"), arguments(found, "sglang")
    assert (vllm["--tensor-parallel-size"], vllm["--data-parallel-size"]) == ("2", "4")
    assert "--enable-expert-parallel" in vllm
    assert (sglang["--tp-size"], sglang["--dp-size"], sglang["--ep-size"]) == ("8", "4", "8")
    assert "--enable-dp-attention" in sglang
    assert vllm["--max-num-seqs"] == "4"
    assert sglang["--max-running-requests"] == "16"
    assert any(note.startswith("2 instances of the engine, each on 8 devices") for note in found.notes)


def test_an_engine_that_cannot_run_a_layout_is_left_out() -> None:
    found = plan(QWEN_MOE, target="h200", tp=8, ep=2, pp=1, dp=1, context=4096)
    assert set(found.engines) == {"sglang"}
    assert any("ep 2 within tp 8 is for SGLang" in note for note in found.notes)
    assert arguments(found, "sglang")["--ep-size"] == "2"


def test_what_the_targets_engine_cannot_run_is_chosen_only_where_asked_for() -> None:
    """vLLM, which all the targets are served by, has no expert parallelism over a part of tp."""
    asked: dict[str, Any] = {"target": "h200", "devices": 8, "concurrency": 16, "context": 4096}
    found = plan(QWEN_MOE, **asked)
    assert found.chosen is not None
    assert all(a.ep == 1 or a.ep >= a.tp for a in (found.chosen, *found.alternatives))
    h200 = load_target("h200")
    both = plan(QWEN_MOE, spec=h200.model_copy(update={"engines": ("vllm", "sglang")}), tp=8, **asked)
    assert both.chosen is not None
    assert any(1 < a.ep < a.tp for a in (both.chosen, *both.alternatives))


def test_two_pools_are_set_against_the_layout() -> None:
    asked: dict[str, Any] = {"target": "h200", "devices": 16, "concurrency": 64, "context": 5000}
    found = plan(CONFIGS / "Qwen__Qwen3-235B-A22B.json", output=1000, **asked).disaggregation
    assert found is not None
    pools = (found.prefill, found.decode)
    assert found.devices == sum(pool.workers * pool.tp * pool.pp * pool.dp for pool in pools) <= 16
    assert found.tokens_per_second == pytest.approx(1000 * min(pool.requests_per_second for pool in pools))
    assert plan(CONFIGS / "Qwen__Qwen3-235B-A22B.json", **asked).disaggregation is None


def test_replicas_of_a_dense_model_are_one_server() -> None:
    found = plan(LLAMA_8B, tp=2, pp=1, dp=4, concurrency=8, context=4096)
    assert arguments(found, "vllm")["--data-parallel-size"] == "4"
    assert arguments(found, "sglang")["--dp-size"] == "4"
    assert "--enable-dp-attention" not in found.engines["sglang"]


def test_the_cache_is_what_the_checkpoint_says_where_the_target_holds_it() -> None:
    gemma = CONFIGS / "nvidia__Gemma-4-31B-IT-NVFP4.json"
    assert plan(gemma, target="b200", context=4096).kv_dtype.startswith("fp8")
    assert plan(gemma, target="b200", context=4096, kv_dtype="bf16").kv_dtype == "bfloat16"


def test_one_cpu_shares_its_memory_among_ranks(tmp_path: Path) -> None:
    small = write_config(tmp_path, config())
    one = plan(small, target="cpu", memory=16 * GIB).chosen
    two = plan(small, target="cpu", memory=16 * GIB, tp=2).chosen
    assert one is not None
    assert two is not None
    assert one.per_device.capacity == 2 * two.per_device.capacity == 16 * GIB
    assert one.seconds_per_token is None


def test_what_the_target_does_not_tell_is_named() -> None:
    assert "bandwidth" in plan(config(), target="cpu", memory=16 * GIB).unchecked


def test_a_failed_profile_makes_no_plan() -> None:
    failed = any_profile().model_copy(
        update={"checks": (Check(name="tensors", verdict=Verdict.FAIL, reason="x is missing"),)}
    )
    with pytest.raises(CheckFailed, match="x is missing"):
        plan_layout(model_of(config()), failed, PlanSettings.model_validate({"target": "h100"}))


def test_unusable_questions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="longer than the model's 131,072"):
        plan(LLAMA_8B, context=131073)
    with pytest.raises(InputError, match="--weight-dtype"):
        plan(write_config(tmp_path, config(torch_dtype=None)))
    with pytest.raises(InputError, match="did you mean 'h100'"):
        plan(LLAMA_8B, target="h10")
    with pytest.raises(InputError, match="int3"):
        plan(LLAMA_8B, kv_dtype="int3")
    with pytest.raises(InputError, match="weights are not written as 'fp7'"):
        plan(LLAMA_8B, weight_dtype="fp7")


def test_an_edited_target_is_another_plan() -> None:
    same = PlanSettings.model_validate({"target": "h100"})
    slower = H100.model_copy(update={"bandwidth": None})
    assert same == PlanSettings.model_validate({"target": "h100"})
    assert same.to_json() != PlanSettings.model_validate({"target": "h100", "spec": slower}).to_json()
    assert PlanSettings.model_validate(same.to_json()) == same


def test_machine_memory_is_the_control_groups_where_that_is_less(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    assert machine_memory(tmp_path) == 16 * GIB
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert machine_memory(tmp_path) == 16 * GIB
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{4 * GIB}\n")
    assert machine_memory(tmp_path) == 4 * GIB
    with pytest.raises(InputError, match="--device-memory"):
        machine_memory(tmp_path / "nowhere")


LLAMAS = st.builds(
    lambda heads, kv, layers, inner, vocab, tied: config(
        num_attention_heads=heads * kv,
        num_key_value_heads=kv,
        head_dim=8,
        num_hidden_layers=layers,
        intermediate_size=inner,
        vocab_size=vocab,
        tie_word_embeddings=tied,
    ),
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 9), st.integers(1, 300), st.integers(1, 900), st.booleans(),
)  # fmt: skip
MIXTURES = st.builds(
    lambda heads, layers, experts, inner, vocab: edited(
        QWEN_MOE,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        hidden_size=64,
        head_dim=8,
        num_hidden_layers=layers,
        num_experts=experts,
        num_experts_per_tok=1,
        moe_intermediate_size=inner,
        vocab_size=vocab,
        max_position_embeddings=4096,
    ),
    st.integers(1, 8), st.integers(1, 5), st.integers(1, 24), st.integers(1, 200), st.integers(1, 900),
)  # fmt: skip
MODELS = st.one_of(LLAMAS, MIXTURES)


LONG = 1 << 19


def asked_of(raw: dict[str, Any], devices: int, concurrency: int, tenths: int, **asked: Any) -> ParallelPlan:
    """Long sequences on devices that hold little more than the engine takes: some fit on one, on several, on none."""
    long = {**raw, "max_position_embeddings": 4 * LONG}
    memory = 2 * 10**9 + tenths * 10**8
    return plan(
        long, **{"devices": devices, "concurrency": concurrency, "device_memory": memory, "context": LONG, **asked}
    )


def test_some_of_the_questions_below_have_an_answer_and_some_have_not() -> None:
    raw = config(num_attention_heads=8, num_key_value_heads=8, head_dim=8, num_hidden_layers=8, intermediate_size=64)
    needed = [asked_of(raw, 12, 4, tenths).minimum_devices for tenths in range(0, 60, 4)]
    assert None in needed
    assert 1 in needed
    assert any(n is not None and n > 1 for n in needed)


@settings(max_examples=40, deadline=None)
@given(MODELS, st.integers(1, 12), st.integers(1, 9), st.integers(0, 60))
def test_no_plan_breaks_a_constraint(raw: dict[str, Any], devices: int, concurrency: int, tenths: int) -> None:
    found = asked_of(raw, devices, concurrency, tenths)
    constraints = constraints_of(raw)
    for layout in (found.chosen, *found.alternatives):
        if layout:
            assert constraints.obstacles(sizes_of(layout)) == []
            assert layout.devices == layout.tp * layout.pp * layout.dp <= devices
            assert layout.per_device.total <= layout.per_device.capacity
            assert layout.stages[-1][1] == constraints.structure.layers
    assert found.feasible == (found.max_context >= LONG)
    assert found.feasible == (found.minimum_devices is not None and found.minimum_devices <= devices)


@settings(max_examples=30, deadline=None)
@given(MODELS, st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.integers(0, 60))
def test_more_devices_never_make_it_impossible(
    raw: dict[str, Any], devices: int, more: int, concurrency: int, tenths: int
) -> None:
    few = asked_of(raw, devices, concurrency, tenths)
    many = asked_of(raw, devices + more, concurrency, tenths)
    assert few.feasible <= many.feasible
    assert few.max_context <= many.max_context
    assert few.minimum_devices == many.minimum_devices


@settings(max_examples=25, deadline=None)
@given(MODELS, st.integers(1, 8), st.integers(1, 6), st.integers(0, 60), st.integers(1, 20))
def test_the_longest_context_grows_with_memory_and_shrinks_with_sequences(
    raw: dict[str, Any], devices: int, concurrency: int, tenths: int, more: int
) -> None:
    found = asked_of(raw, devices, concurrency, tenths)
    assert found.max_context <= asked_of(raw, devices, concurrency, tenths + more).max_context
    alone = {"tp": 1, "pp": 1, "ep": 1, "dp": 1}
    one, crowded = (asked_of(raw, 1, n, tenths, **alone) for n in (concurrency, concurrency + more))
    assert one.max_context >= crowded.max_context


@settings(max_examples=20, deadline=None)
@given(MODELS, st.randoms(use_true_random=False))
def test_the_order_of_keys_changes_nothing(raw: dict[str, Any], random: Any) -> None:
    keys = list(raw)
    random.shuffle(keys)
    shuffled = {key: raw[key] for key in keys}
    assert plan(shuffled, devices=4, concurrency=2) == plan(raw, devices=4, concurrency=2)


def test_a_plan_survives_being_stored() -> None:
    found = plan(QWEN_MOE, concurrency=4, context=4096)
    assert ParallelPlan.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_sizes_of_a_layout_are_those_it_was_made_of() -> None:
    found = plan(QWEN_MOE, tp=2, pp=2, ep=4, dp=2, devices=8, concurrency=4, context=4096, target="h200")
    assert found.chosen is not None
    assert dataclasses.astuple(sizes_of(found.chosen)) == (2, 2, 4, 2, 1)


def test_a_limit_on_the_time_of_a_token_leaves_out_what_is_slower() -> None:
    asked: dict[str, Any] = {"target": "h200", "devices": 8, "context": 4096, "concurrency": 64, "objective": "cost"}
    free = plan(LLAMA_70B, **asked)
    assert free.chosen
    assert free.chosen.seconds_per_token
    limit = free.chosen.seconds_per_token * 0.8
    held = plan(LLAMA_70B, **asked, tpot=limit)
    assert held.chosen
    assert all(
        layout.seconds_per_token is not None and layout.seconds_per_token <= limit
        for layout in (held.chosen, *held.alternatives)
    )
    none = plan(LLAMA_70B, **asked, tpot=1e-6)
    assert not none.feasible
    assert none.verdict is Verdict.FAIL
    assert "a token takes" in none.reason
    assert [r.constraint for r in none.rejected].count("tpot") == 1


def test_a_limit_that_cannot_be_checked_is_not_passed() -> None:
    held = plan(LLAMA_8B, target="cpu", context=128, tpot=1.0, device_memory=64 << 30)
    assert not held.feasible
    assert "cannot be predicted" in held.reason
