"""The engine holds, after loading our files, what it holds after loading the original."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards
from tests.models.by_rules import write_sparse
from tests.reshard.engines import EngineWorker, engine_home, engine_python, engine_worker
from tests.reshard.test_engine_keys import RECORDS, record_of, stored

__all__ = ["engine_home", "engine_python", "engine_worker"]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

#: Families whose model the engine does not make without torchvision, which its environment does not have.
IMAGES = ("gemma3-vision", "gemma4-moe", "kimi_k25", "kimi_k3", "llama4-bf16", "minimax_m3", "qwen3_5", "qwen3_vl")

#: By model: two ranks in each of two stages, and whole experts where there are some. Smaller worlds show nothing more.
WORLDS: dict[str, list[str]] = {}
for path in RECORDS:
    name, tp, pp, *ep = path.stem.rsplit("-", 3 if path.stem.endswith("-ep") else 2)
    if not name.startswith(IMAGES) and (tp, pp, *ep) in (("2", "2"), ("2", "1", "ep")):
        WORLDS.setdefault(name, []).append("-".join([tp, pp, *ep]))


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_the_engine_holds_the_same_bytes(
    name: str, engine_python: Path, engine_worker: EngineWorker, tmp_path: Path
) -> None:
    record = record_of(RECORDS[0].with_name(f"{name}-1-1.json"))
    original = random_release(tmp_path / "release", record)
    ours = {world: str(resharded(original, tmp_path / world, world)) for world in WORLDS[name]}
    job = {"model": str(original.root), "worlds": ours, "moe_backend": record["moe_backend"]}
    state = engine_worker.ask(engine_python, "engine_state.py", job)
    assert state.keys() == ours.keys()
    for world, ranks in state.items():
        for rank, held in enumerate(ranks):
            assert held["original"], "the engine has no tensors"
            assert [tensor for tensor, digest in held["original"].items() if digest is None] == [], "not loaded"
            assert held["ours"] == held["original"], f"{world}, rank {rank}"


def random_release(root: Path, record: Mapping[str, Any]) -> Checkpoint:
    """All tensors that the config calls for, with random values that are finite."""
    checkpoint = write_sparse(root, record["config"], stored(record["config"], record))
    random = np.random.default_rng(0)
    for tensor in checkpoint.tensors.values():
        data = random.integers(0, 256, tensor.nbytes, dtype=np.uint8)
        width = {"BF16": 2, "F32": 4}.get(tensor.dtype)
        if width is not None:
            data[width - 1 :: width] &= 0xBF  # exponents below 128
        with (root / tensor.file).open("r+b") as file:
            file.seek(tensor.begin)
            file.write(data.tobytes())
    return open_checkpoint(root)


def resharded(original: Checkpoint, target: Path, world: str) -> Path:
    tp, pp, *ep = world.split("-")
    plan = plan_writes(original, find_family(original.config), "vllm", int(tp), int(pp), int(tp) if ep else 1)
    with resumable_folder(target, plan_key(plan, original)) as partial:
        write_shards(plan, original, partial.root)
    return target
