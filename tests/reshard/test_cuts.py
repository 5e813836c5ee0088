"""What a rank gets of tensors whose divided dimension is not the first, or has parts that are divided by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint
from day0.errors import InputError
from tasks.reshard.planner import plan_writes
from tasks.reshard.writes import Origin, WritePlan
from tests.models.by_rules import plain, write_sparse

ENGINE = Path(__file__).parent / "data/engine"

Arrays = dict[str, np.ndarray[Any, Any]]


def config_of(record: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((ENGINE / f"{record}.json").read_text())["config"]
    return value


def carried_out(checkpoint: Checkpoint, plan: WritePlan, stored: Arrays) -> list[Arrays]:
    """What the files of a plan without conversions would hold, for a checkpoint with these values."""
    files = [bytearray(file.nbytes) for file in plan.files]
    for stream in (stream for streams in plan.streams.values() for stream in streams if stream.conversion is None):
        data = stored[stream.inputs[0].name].tobytes()
        for piece in stream.pieces:
            runs = (piece.offset + row * piece.stride for row in range(piece.rows))
            begin = piece.target_offset
            files[piece.target][begin : begin + piece.nbytes] = b"".join(data[at : at + piece.run] for at in runs)
    return [
        {
            t.name: np.frombuffer(bytes(file[t.begin : t.end]), np.uint16).reshape(t.shape)
            for t in written.tensors
            if t.dtype == "BF16"
        }
        for file, written in zip(files, plan.files, strict=True)
    ]


@pytest.mark.parametrize(
    ("record", "axis", "tp", "ep"),
    [
        ("qwen3_5_moe-bf16-1-1", 1, 2, 1),
        ("qwen3_5_moe-bf16-1-1", 1, 4, 2),
        ("qwen3_5_moe-bf16-1-1", 1, 2, 4),
        ("qwen3_vl_moe-bf16-1-1", 2, 2, 1),
        ("qwen3_vl_moe-bf16-1-1", 2, 4, 2),
        ("qwen3_vl_moe-bf16-1-1", 2, 2, 2),
    ],
)
def test_stacked_experts_are_divided_each_by_itself(record: str, axis: int, tp: int, ep: int, tmp_path: Path) -> None:
    """Gate and up of every expert of a rank, in turn; also where a prediction module has such experts."""
    config = config_of(record)
    checkpoint = write_sparse(tmp_path, config, plain(config))
    values = np.random.default_rng(0)
    stored = {n: values.integers(0, 1 << 16, t.shape, dtype=np.uint16) for n, t in checkpoint.tensors.items()}
    plan = plan_writes(checkpoint, find_family(config), "hf", tp, 1, ep)
    experts = [name for name in stored if name.endswith("experts.gate_up_proj")]
    assert len(experts) >= 2
    share = max(tp, ep) // ep  # ranks that share an expert
    for rank, held in enumerate(carried_out(checkpoint, plan, stored)):
        group, part = divmod(rank, share)
        for name in experts:
            mine = np.array_split(stored[name], ep)[group]
            gate, up = np.split(mine, 2, axis)
            expected = [np.split(projection, share, axis)[part] for projection in (gate, up)]
            np.testing.assert_array_equal(held[name], np.concatenate(expected, axis), f"{name}, rank {rank}")


def test_fused_projections_are_divided_by_their_parts(tmp_path: Path) -> None:
    """The q, k and v of a vision tower, and the channels of a delta net's convolution."""
    config = config_of("qwen3_5-bf16-1-1")
    checkpoint = write_sparse(tmp_path, config, plain(config))
    values = np.random.default_rng(1)
    stored = {n: values.integers(0, 1 << 16, t.shape, dtype=np.uint16) for n, t in checkpoint.tensors.items()}
    text, width = config["text_config"], config["vision_config"]["hidden_size"]
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    parts = {
        "model.visual.blocks.0.attn.qkv.weight": [width, 2 * width],
        "model.visual.blocks.0.attn.qkv.bias": [width, 2 * width],
        "model.language_model.layers.0.linear_attn.conv1d.weight": [key, 2 * key],
        "model.language_model.layers.0.linear_attn.in_proj_qkv.weight": [key, 2 * key],
    }
    for rank, held in enumerate(carried_out(checkpoint, plan_writes(checkpoint, find_family(config), "hf", 2), stored)):
        for name, at in parts.items():
            expected = [np.split(part, 2)[rank] for part in np.split(stored[name], at)]
            np.testing.assert_array_equal(held[name], np.concatenate(expected), f"{name}, rank {rank}")


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_rows_of_rotated_heads_are_reordered_as_the_engine_does(tp: int, tmp_path: Path) -> None:
    """Llama 4's q and k, as `permute_qk_weight_for_rotary` has it; v as it is stored."""
    config = config_of("llama4-text-1-1")
    checkpoint = write_sparse(tmp_path, config, plain(config))
    values = np.random.default_rng(2)
    stored = {n: values.integers(0, 1 << 16, t.shape, dtype=np.uint16) for n, t in checkpoint.tensors.items()}
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    plan = plan_writes(checkpoint, find_family(config), "vllm", tp)
    for rank, held in enumerate(carried_out(checkpoint, plan, stored)):
        expected = []
        for part in "qkv":
            whole = stored[f"model.layers.1.self_attn.{part}_proj.weight"]
            if part in heads:
                split = whole.reshape(heads[part], -1, 2, whole.shape[1])
                whole = split.transpose(0, 2, 1, 3).reshape(whole.shape)
            ranks = tp if part == "q" else min(tp, heads["k"])
            expected.append(np.split(whole, ranks)[rank * ranks // tp])
        np.testing.assert_array_equal(held["model.layers.1.self_attn.qkv_proj.weight"], np.concatenate(expected))


def test_rows_are_left_out_and_added_as_the_engine_has_them(tmp_path: Path) -> None:
    """Of A_log the engine takes as many rows as there are heads; joined projections it fills up to a multiple of 16."""
    config = config_of("kimi_linear-full_rank_gate-1-1")
    decays = {name: ("F32", (6,)) for name in plain(config) if name.endswith(".A_log")}
    checkpoint = write_sparse(tmp_path / "six", config, plain(config) | decays)
    plan = plan_writes(checkpoint, find_family(config), "vllm", 2)
    attention = "model.layers.0.self_attn"
    for rank in range(2):
        held = {t.name: t for file in plan.files if file.rank == rank for t in file.tensors}
        first, last = 2 * rank, 2 * rank + 2
        [origin] = held[f"{attention}.A_log"].origins
        assert origin == Origin(f"{attention}.A_log", ((first, last),), "not the last 2 rows")
        joined = held[f"{attention}.in_proj_qkvgfab.weight"]
        assert joined.shape == (304, 256)
        assert joined.origins[-1] == Origin(None, ((0, 304 - (4 * 64 + 32 + 2)), (0, 256)), "zeros")
    decays = dict.fromkeys(decays, ("F32", (3,)))
    checkpoint = write_sparse(tmp_path / "three", config, plain(config) | decays)
    with pytest.raises(InputError, match=r"A_log: it has 3 rows; the engine takes 4"):
        plan_writes(checkpoint, find_family(config), "vllm", 2)
