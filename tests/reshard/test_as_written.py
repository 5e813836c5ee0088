"""What an engine wants beside the weights hangs on how they are written, not on how they were stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from tasks.reshard.planner import plan_writes
from tasks.reshard.writes import WritePlan
from tests.models.by_rules import plain, write_sparse
from tests.models.families import make_tiny_gpt_oss, make_tiny_qwen3_moe

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def planned(checkpoint: Checkpoint, weight_dtype: str | None = None, tp: int = 1) -> WritePlan:
    return plan_writes(checkpoint, find_family(checkpoint.config), "vllm", tp, weight_dtype=weight_dtype)


def tensors(plan: WritePlan) -> set[tuple[int, str, str, tuple[int, ...]]]:
    return {(file.rank, t.name, t.dtype, t.shape) for file in plan.files for t in file.tensors}


@pytest.mark.parametrize("tp", [1, 2])
def test_computed_out_it_is_what_a_release_that_was_never_quantised_becomes(tp: int, tmp_path: Path) -> None:
    quantised = open_checkpoint(make_tiny_qwen3_moe(tmp_path / "fp8", kv_heads=4, fp8=True))
    never = open_checkpoint(make_tiny_qwen3_moe(tmp_path / "plain", kv_heads=4))
    assert tensors(planned(quantised, "bfloat16", tp)) == tensors(planned(never, tp=tp))
    assert any(name.endswith("attn.k_scale") for _, name, _, _ in tensors(planned(quantised, tp=tp)))


def test_mxfp4_experts_computed_out_are_laid_out_as_the_engine_has_plain_ones(tmp_path: Path) -> None:
    quantised = open_checkpoint(make_tiny_gpt_oss(tmp_path / "mxfp4"))
    never = open_checkpoint(make_tiny_gpt_oss(tmp_path / "plain", mxfp4=False))
    for tp in (1, 2):
        assert tensors(planned(quantised, "bfloat16", tp)) == tensors(planned(never, tp=tp))


def test_a_stored_scale_of_the_cache_goes_with_the_quantisation(tmp_path: Path) -> None:
    release = open_checkpoint(make_tiny_qwen3_moe(tmp_path / "m", kv_heads=4, fp8=True))
    stored = {name: (tensor.dtype, tensor.shape) for name, tensor in release.tensors.items()}
    key = "model.layers.1.self_attn.k_proj.k_scale"
    checkpoint = write_sparse(tmp_path / "scaled", dict(release.config), stored | {key: ("F32", ())})
    assert key not in {dropped.tensor for dropped in planned(checkpoint).dropped}
    reasons = {dropped.tensor: dropped.reason for dropped in planned(checkpoint, "bfloat16").dropped}
    assert reasons[key] == "the engine has no such tensor beside the weights as they are converted"
    assert tensors(planned(checkpoint, "bfloat16")) == tensors(planned(release, "bfloat16"))


def test_quantised_anew_it_has_what_the_engine_wants_then(tmp_path: Path) -> None:
    config = dict(open_checkpoint(make_tiny_qwen3_moe(tmp_path / "m", kv_heads=4)).config)
    checkpoint = write_sparse(tmp_path / "plain", config, plain(config))
    names = {name for _, name, _, _ in tensors(planned(checkpoint, "fp8"))}
    assert "model.layers.0.self_attn.attn.k_scale" in names
    assert "model.layers.0.self_attn.attn.k_scale" not in {name for _, name, _, _ in tensors(planned(checkpoint))}
