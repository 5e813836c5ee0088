"""The plan's weights are, to the byte and on every rank, the tensor data that resharding to layout `hf` writes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.architecture.family import find_family
from day0.architecture.parallel import Sizes
from day0.architecture.stored import StoredGroup, converted, stored_from_headers
from day0.architecture.structure import structure_of
from day0.checkpoint import Checkpoint, open_checkpoint
from tasks.plan.constraints import Constraints
from tasks.plan.weights import Weights
from tasks.reshard.planner import plan_writes
from tests.architecture.data import DATA, config
from tests.models.families import make_tiny_deepseek_v3, make_tiny_gpt_oss, make_tiny_qwen3_moe
from tests.models.published import make_published
from tests.models.tiny import make_tiny_llama
from tests.plan.asking import constraints_of, edited

#: tp, pp, ep
LAYOUTS = ((1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (1, 3, 1), (2, 1, 2), (4, 1, 2), (1, 1, 4), (2, 2, 8), (8, 1, 8))
LARGE = ((8, 1, 8), (2, 3, 8), (4, 5, 2))


def written(checkpoint: Checkpoint, sizes: Sizes, weight_dtype: str | None = None) -> list[int]:
    """Bytes of tensor data that reshard writes for each rank."""
    family = find_family(checkpoint.config)
    plan = plan_writes(checkpoint, family, "hf", sizes.tp, sizes.pp, sizes.ep, weight_dtype)
    found = [0] * len(plan.ranks)
    for file in plan.files:
        found[file.rank] += file.nbytes - len(file.header)
    return found


def planned(weights: Weights, sizes: Sizes) -> list[int]:
    by_rank = [weights.stages(sizes, rank) for rank in range(sizes.stage_ranks)]
    return [by_rank[rank][stage] for stage in range(sizes.pp) for rank in range(sizes.stage_ranks)]


def weights_of(checkpoint: Checkpoint, weight_dtype: str | None = None) -> Weights:
    structure = structure_of(checkpoint.config, "config.json", checkpoint.tensors)
    stored = stored_from_headers(structure.family, checkpoint.tensors)
    return Weights(structure.family, converted(stored, structure, weight_dtype) if weight_dtype else stored)


def agree(checkpoint: Checkpoint, layouts: tuple[tuple[int, int, int], ...], weight_dtype: str | None = None) -> int:
    """Hold every layout that the model can have against what is written; how many those were."""
    weights = weights_of(checkpoint, weight_dtype)
    structure = structure_of(checkpoint.config, "config.json", checkpoint.tensors)
    constraints = Constraints(structure, weights)
    held = 0
    for tp, pp, ep in layouts:
        sizes = Sizes(tp, pp, ep, max(1, ep // tp))
        if constraints.obstacles(sizes):
            continue
        ranks = planned(weights, sizes)
        assert ranks == written(checkpoint, sizes, weight_dtype), sizes
        assert max(ranks) == max(weights.stages(sizes)), f"{sizes}: not rank 0 of a stage holds most"
        held += 1
    return held


def stored_tied(folder: Path) -> Path:
    """Tied by its config, with a head of its own all the same."""
    root = make_tiny_llama(folder, layers=5, heads=8, kv_heads=2)
    path = root / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    return root


TINY: dict[str, Callable[[Path], Path]] = {
    "llama": functools.partial(make_tiny_llama, layers=5, heads=8, kv_heads=2),
    "llama, tied": functools.partial(make_tiny_llama, layers=5, heads=8, kv_heads=2, tied=True),
    "llama, tied but stored": stored_tied,
    "qwen3_moe": make_tiny_qwen3_moe,
    "deepseek_v3": make_tiny_deepseek_v3,
    "gpt_oss": make_tiny_gpt_oss,
}


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("weight_dtype", [None, "float32", "int8"])
def test_of_small_models(tmp_path: Path, name: str, weight_dtype: str | None) -> None:
    checkpoint = open_checkpoint(TINY[name](tmp_path / "model"))
    assert agree(checkpoint, LAYOUTS, weight_dtype) >= 4


@pytest.mark.parametrize(
    ("name", "experts", "layouts"),
    [
        ("kimi_k3", 16, 3),
        ("deepseek_v3.1", 8, 3),
        ("deepseek_v4_flash_0731", 8, 3),
        ("qwen3_235b_a22b_instruct_2507_fp8", 8, 3),
        ("glm_5.1_fp8", 8, 3),
        ("qwen3_vl_30b_a3b_instruct", None, 3),
    ],
)
def test_of_published_checkpoints(tmp_path: Path, name: str, experts: int | None, layouts: int) -> None:
    """With fewer experts, whose tensors are all alike."""
    assert agree(open_checkpoint(make_published(name, tmp_path, experts=experts)), LARGE) == layouts


def test_of_what_a_conversion_makes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_published("deepseek_v3.1", tmp_path, experts=8))
    assert agree(checkpoint, ((8, 1, 8), (4, 2, 1)), "bfloat16") == 2


def test_experts_that_do_not_divide_leave_the_first_ranks_one_more(tmp_path: Path) -> None:
    """Engines refuse it, resharding does not: what it writes is what is counted."""
    checkpoint = open_checkpoint(make_published("kimi_k2_instruct", tmp_path, experts=10))
    sizes = Sizes(4, 2, 4)
    weights = weights_of(checkpoint)
    ranks = planned(weights, sizes)
    assert ranks == written(checkpoint, sizes)
    assert ranks[0] > ranks[3]
    assert max(ranks) == max(weights.stages(sizes))


MODELS = st.builds(
    lambda heads, kv, layers, inner, vocab, tied, bias: config(
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


@settings(max_examples=80, deadline=None)
@given(MODELS, st.integers(1, 16), st.integers(1, 9))
def test_the_ranks_together_hold_the_model_and_what_they_repeat(raw: dict[str, object], tp: int, pp: int) -> None:
    constraints = constraints_of(raw)
    sizes = Sizes(tp, pp)
    if constraints.obstacles(sizes):
        return
    weights, stored = constraints.weights, constraints.weights.stored
    held = sum(planned(weights, sizes))
    repeated = 0
    for group in weights.groups:
        copies = len(group.layers or (0,))
        over_ranks = sum(weights.rank_bytes(group, sizes, rank) for rank in range(sizes.stage_ranks))
        assert over_ranks * copies >= group.bytes
        again = weights.shared_embedding and pp > 1 and group.kind == "embedding"
        repeated += over_ranks * copies * (2 if again else 1) - group.bytes
    assert held == stored.bytes + repeated
    if sizes == Sizes(1, 1):
        assert held == stored.bytes


def copies(group: StoredGroup, sizes: Sizes) -> int:
    """How often the ranks of a stage together hold a tensor, by what each kind of split means."""
    rule = group.rule
    if rule.rule.kind == "routed_expert":
        return 1 if rule.dim is not None else sizes.expert_tp
    if rule.dim is None:
        return sizes.stage_ranks
    shared = [max(1, sizes.tp // segment.units) for segment in rule.segments if segment.replicate]
    return sizes.group_replicas * (shared[0] if shared else 1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.sampled_from([4, 6, 8, 12]),
    st.sampled_from([1, 2, 4, 8]), st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 6, 8, 12]),
)  # fmt: skip
def test_ranks_hold_the_total_and_what_is_replicated(
    kv: int, queries: int, layers: int, experts: int, tp: int, pp: int, ep: int
) -> None:
    """Divided tensors once for each attention replica, whole ones on every rank, experts once in all."""
    raw = edited(
        DATA / "configs/Qwen__Qwen3-30B-A3B.json", num_attention_heads=kv * queries, num_key_value_heads=kv, head_dim=8,
        hidden_size=64, num_hidden_layers=layers, num_experts=experts, num_experts_per_tok=1, moe_intermediate_size=48,
        vocab_size=840,
    )  # fmt: skip
    sizes = Sizes(tp, pp, ep, max(1, ep // tp))
    constraints = constraints_of(raw)
    if constraints.obstacles(sizes):
        return
    weights = constraints.weights
    assert sum(planned(weights, sizes)) == sum(group.bytes * copies(group, sizes) for group in weights.groups)
