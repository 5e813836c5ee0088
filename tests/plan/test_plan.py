"""Plans: the constraints of real reports, memory to the byte, and what is said when a model does not fit."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.family import find_family
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.structure import Structure, structure_of
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.checkpoint import open_checkpoint
from day0.errors import CheckFailed, InputError
from day0.target import GIB, load_target, machine_memory
from day0.verdict import Verdict
from tasks.plan.constraints import Sizes, obstacles
from tasks.plan.layout import plan_layout
from tasks.plan.memory import MemoryModel
from tasks.plan.settings import PlanSettings
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
from tasks.reshard.planner import plan_writes
from tests.architecture.data import LLAMA_8B, LLAMA_70B, LLAMA_405B, config, read, write_config
from tests.models.safetensors_file import write_holes
from tests.models.tiny import make_tiny_llama

H100 = load_target("h100")


def plan(path: Path, **given: Any) -> ParallelPlan:
    values = {"target": "h100", "concurrency": 1, **given}
    profile = describe_model(path, ProfileSettings())
    source = path / "config.json" if path.is_dir() else path
    return plan_layout(structure_of(read(source), str(path)), profile, PlanSettings.model_validate(values))


def structure(**changes: Any) -> Structure:
    return structure_of(config(**changes), "config.json")


def memory_model(of: Structure) -> MemoryModel:
    return MemoryModel(of, H100.engine_memory, "bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("layers", "pp", "counts"),
    [(61, 4, [15, 15, 16, 15]), (94, 4, [23, 24, 24, 23]), (43, 2, [22, 21]), (80, 4, [20] * 4), (3, 3, [1] * 3)],
)
def test_pipeline_stages_are_the_engines(layers: int, pp: int, counts: list[int]) -> None:
    stages = pipeline_stages(layers, pp)
    assert [end - first for first, end in stages] == counts
    assert stages[0][0] == 0
    assert stages[-1][1] == layers


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 40))
def test_every_layer_is_in_one_stage(layers: int, pp: int) -> None:
    stages = pipeline_stages(layers, pp)
    assert [layer for first, end in stages for layer in range(first, end)] == list(range(layers))


@pytest.mark.parametrize(
    ("changes", "tp", "dimension"),
    [
        ({"num_attention_heads": 52, "num_key_value_heads": 52, "hidden_size": 6656}, 8, "num_attention_heads"),
        ({"num_attention_heads": 52, "num_key_value_heads": 52, "hidden_size": 6656}, 3, "num_attention_heads"),
        ({"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}, 8, "num_attention_heads"),
        ({"num_attention_heads": 40, "num_key_value_heads": 10, "hidden_size": 5120}, 4, "num_key_value_heads"),
        ({"num_attention_heads": 96, "num_key_value_heads": 12, "hidden_size": 6144, "vocab_size": 151552}, 6,
         "vocab_size"),
        ({"intermediate_size": 190}, 4, "intermediate_size"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_named(changes: dict[str, Any], tp: int, dimension: str) -> None:
    assert [found.dimension for found in obstacles(structure(**changes), Sizes(tp, 1))][:1] == [dimension]


def test_fewer_kv_heads_than_ranks_are_copied_not_refused() -> None:
    few = structure(num_attention_heads=8, num_key_value_heads=1)
    assert obstacles(few, Sizes(8, 1)) == []
    model = memory_model(few)
    assert model.kv_bytes_per_token(Sizes(8, 1), 0) == model.kv_bytes_per_token(Sizes(1, 1), 0)


def test_an_odd_vocabulary_is_padded_before_it_is_divided() -> None:
    assert obstacles(structure(vocab_size=32001), Sizes(2, 1)) == []


def thirty_billion(folder: Path) -> Path:
    """52 heads, 65 GB: the Llama of 2023 that eight 16 GB devices were asked to hold (vllm-project/vllm#2652)."""
    sizes = {"num_hidden_layers": 60, "hidden_size": 6656, "intermediate_size": 17920, "vocab_size": 32000}
    heads = {"num_attention_heads": 52, "num_key_value_heads": 52}
    return write_config(folder, config(**sizes, **heads, max_position_embeddings=2048))


def test_52_heads_on_eight_small_devices(tmp_path: Path) -> None:
    found = plan(thirty_billion(tmp_path), devices=8, device_memory=16 * 10**9, context=512)
    assert found.feasible
    assert found.chosen is not None
    assert (found.chosen.tp, found.chosen.pp) == (4, 2)
    refused = next(r for r in found.rejected if r.tp == 8)
    assert (refused.dimension, refused.size, refused.divisor) == ("num_attention_heads", 52, 8)


def test_too_few_devices_are_told_how_many_it_takes() -> None:
    found = plan(LLAMA_405B, devices=4)
    assert not found.feasible
    assert found.chosen is None
    assert found.engine_args == {}
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


def test_tensor_parallelism_over_nodes_has_to_be_asked_for() -> None:
    found = plan(LLAMA_405B, devices=16, context=8192)
    assert found.chosen is not None
    assert found.chosen.tp <= 8
    assert any(r.tp == 16 and "span nodes" in r.reason for r in found.rejected)
    assert plan(LLAMA_405B, devices=16, context=8192, tp=16).feasible


def test_the_fastest_token_comes_first_where_speeds_are_known() -> None:
    found = plan(LLAMA_8B, concurrency=8, context=4096)
    assert found.chosen is not None
    speeds = [layout.seconds_per_token or 0 for layout in (found.chosen, *found.alternatives)]
    assert speeds == sorted(speeds)
    assert speeds[0] > 0


def test_memory_is_that_of_the_worst_device_and_adds_up() -> None:
    found = plan(LLAMA_70B, devices=8, tp=2, pp=3, context=4096, concurrency=4)
    assert found.chosen is not None
    memory = found.chosen.per_device
    assert memory.total == memory.weights + memory.kv_cache + memory.activations + memory.overhead <= memory.capacity
    assert found.chosen.stages == ((0, 27), (27, 54), (54, 80))
    assert memory.kv_cache == 27 * 4 * 4096 * 4 * 2 * 128 * 2
    model = memory_model(structure_of(read(LLAMA_70B), "70B"))
    by_stage = [model.weights(Sizes(2, 3), stage) for stage in range(3)]
    assert memory.weights == by_stage[0] == max(by_stage) > min(by_stage)
    assert found.engine_args["kv_cache_bytes"] == memory.kv_cache + 27 * 16 * 4 * 2 * 128 * 2


@pytest.mark.parametrize("tied", ["untied", "tied", "tied, but stored"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 3), (4, 5)])
def test_planned_weights_are_what_resharding_writes(tmp_path: Path, tied: str, tp: int, pp: int) -> None:
    root = make_tiny_llama(tmp_path, layers=5, heads=8, kv_heads=2, vocab=500, tied=tied == "tied")
    if tied == "tied, but stored":
        path = root / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    checkpoint = open_checkpoint(root)
    written = [0] * (tp * pp)
    for file in plan_writes(checkpoint, find_family(checkpoint.config), "vllm", tp, pp).files:
        written[file.rank] += sum(2 * math.prod(t.shape) for t in file.tensors if t.dtype == "BF16")
    found = plan(root, tp=tp, pp=pp, devices=tp * pp)
    assert found.chosen is not None
    of = structure_of(checkpoint.config, "config.json")
    model = MemoryModel(of, H100.engine_memory, "bfloat16", "bfloat16", stored_head=tied == "tied, but stored")
    assert written == [model.weights(Sizes(tp, pp), stage) for stage in range(pp) for _ in range(tp)]
    assert found.chosen.per_device.weights in written


def test_a_dtype_that_the_target_lacks_is_named(tmp_path: Path) -> None:
    spec = H100.model_copy(update={"dtypes": H100.dtypes.model_copy(update={"weights": ("float16",)})})
    found = plan(LLAMA_8B, spec=spec)
    assert not found.feasible
    assert "does not support bfloat16; --weight-dtype may be float16" in found.reason
    assert plan(LLAMA_8B, spec=spec, weight_dtype="fp16").feasible


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


def test_one_cpu_shares_its_memory_among_ranks(tmp_path: Path) -> None:
    small = write_config(tmp_path, config())
    one = plan(small, target="cpu", memory=16 * GIB).chosen
    two = plan(small, target="cpu", memory=16 * GIB, tp=2).chosen
    assert one is not None
    assert two is not None
    assert one.per_device.capacity == 2 * two.per_device.capacity == 16 * GIB
    assert one.seconds_per_token is None


def test_a_failed_profile_makes_no_plan(tmp_path: Path) -> None:
    write_config(tmp_path, config())
    write_holes(tmp_path / "model.safetensors", {"model.norm.weight": ("BF16", [64])})
    with pytest.raises(CheckFailed, match="is missing"):
        plan(tmp_path)


def test_unusable_questions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="longer than the model's 131,072"):
        plan(LLAMA_8B, context=131073)
    with pytest.raises(InputError, match="--weight-dtype"):
        plan(write_config(tmp_path, config(torch_dtype=None)))
    with pytest.raises(InputError, match="did you mean 'h100'"):
        plan(LLAMA_8B, target="h10")


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


MODELS = st.builds(
    lambda heads, kv, layers, inner, vocab, tied, bias: structure(
        num_attention_heads=heads * kv,
        num_key_value_heads=kv,
        head_dim=8,
        num_hidden_layers=layers,
        intermediate_size=inner,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
    ),
    st.integers(1, 8), st.integers(1, 8), st.integers(1, 9), st.integers(1, 300), st.integers(1, 900),
    st.booleans(), st.booleans(),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(MODELS, st.integers(1, 16), st.integers(1, 9))
def test_the_ranks_together_hold_at_least_the_model(of: Structure, tp: int, pp: int) -> None:
    """No rank's share may be rounded down to less than the whole: what divides is divided exactly."""
    sizes = Sizes(tp, pp)
    if obstacles(of, sizes):
        return
    model = memory_model(of)
    held = tp * sum(model.weights(sizes, stage) for stage in range(pp))
    padding = (of.padded_vocab - of.config.vocab_size) * of.config.hidden_size * (1 if of.config.tied_embeddings else 2)
    assert held >= 2 * (of.total + padding)
    cached = tp * sum(model.kv_bytes_per_token(sizes, stage) for stage in range(pp))
    assert cached >= 2 * of.config.layers * of.attention.cache_per_token
    if sizes == Sizes(1, 1):
        assert held == 2 * (of.total + padding)
    worst = max(model.weights(sizes, stage) for stage in range(pp))
    assert worst == max(model.weights(sizes, stage) for stage in model.telling_stages(pp))


@settings(max_examples=40, deadline=None)
@given(MODELS, st.integers(1, 12), st.integers(1, 9), st.integers(10, 24))
def test_no_plan_breaks_a_constraint(of: Structure, devices: int, concurrency: int, size: int) -> None:
    profile = describe_small()
    asked = PlanSettings.model_validate(
        {"target": "h100", "devices": devices, "concurrency": concurrency, "device_memory": size * 10**9 // 2}
    )
    found = plan_layout(of, profile, asked)
    for layout in (found.chosen, *found.alternatives):
        if layout:
            assert obstacles(of, Sizes(layout.tp, layout.pp, layout.ep, layout.dp)) == []
            assert layout.devices == layout.tp * layout.pp * layout.dp <= devices
            assert layout.per_device.total <= layout.per_device.capacity
            assert layout.stages[-1][1] == of.config.layers
    assert found.feasible == (found.max_context > 0)
    assert found.feasible == (found.minimum_devices is not None and found.minimum_devices <= devices)


@functools.cache
def describe_small() -> Profile:
    """Any good profile of the models above: what a plan takes from it is the same for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        return describe_model(write_config(Path(folder), config()), ProfileSettings())
