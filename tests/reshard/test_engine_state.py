"""The engine's own loader makes, of the same checkpoint, the same bytes as a plan of layout `vllm`."""

from __future__ import annotations

import hashlib
import json
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
from tests.reshard.engines import engine_home, engine_python, run_in_engine
from tests.reshard.test_engine_keys import RECORDS, record_of, stored

__all__ = ["engine_home", "engine_python"]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

#: Families whose model the engine does not make without torchvision, which its environment does not have.
IMAGES = ("gemma3-vision", "gemma4-moe", "kimi_k25", "kimi_k3", "llama4-bf16", "minimax_m3", "qwen3_5", "qwen3_vl")

#: Made, but not loaded, on a CPU alone.
NOT_LOADED: tuple[str, ...] = ()

WORLDS: dict[str, list[str]] = {}
for path in RECORDS:
    name, tp, pp, *ep = path.stem.rsplit("-", 3 if path.stem.endswith("-ep") else 2)
    if not name.startswith((*IMAGES, *NOT_LOADED)):
        WORLDS.setdefault(name, []).append("-".join([tp, pp, *ep]))


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_the_engine_would_hold_the_same_bytes(name: str, engine_python: Path, tmp_path: Path) -> None:
    record = record_of(RECORDS[0].with_name(f"{name}-1-1.json"))
    checkpoint = random_release(tmp_path / "release", record)
    held = engine_state(engine_python, checkpoint.root, tmp_path / "state.json", WORLDS[name], record["moe_backend"])
    for world in WORLDS[name]:
        tp, pp, *ep = world.split("-")
        written = digests(checkpoint, tmp_path / world, int(tp), int(pp), int(tp) if ep else 1)
        for rank, (ours, theirs) in enumerate(zip(written, held[world], strict=True)):
            assert [tensor for tensor, digest in theirs.items() if digest is None] == [], "not loaded from this release"
            assert ours.keys() == theirs.keys()
            other = [tensor for tensor in ours if ours[tensor] != theirs[tensor]]
            # Records of a shape are integers; the engine happens to keep them as floats, and does not read them.
            assert [tensor for tensor in other if not tensor.endswith("_weight_shape")] == [], f"{world}, rank {rank}"


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


def engine_state(
    python: Path, model: Path, out: Path, worlds: list[str], moe_backend: str
) -> dict[str, list[dict[str, str | None]]]:
    run_in_engine(python, "engine_state.py", model, out, *worlds, "--moe-backend", moe_backend)
    found: dict[str, list[dict[str, str | None]]] = json.loads(out.read_text())
    return found


def digests(checkpoint: Checkpoint, target: Path, tp: int, pp: int, ep: int) -> list[dict[str, str]]:
    """Per rank, the digest of each tensor that we write."""
    plan = plan_writes(checkpoint, find_family(checkpoint.config), "vllm", tp, pp, ep)
    with resumable_folder(target, plan_key(plan, checkpoint)) as partial:
        write_shards(plan, checkpoint, partial.root)
    ranks: list[dict[str, str]] = [{} for _ in plan.ranks]
    for file in plan.files:
        if file.name.startswith("mtp-"):
            continue
        data = memoryview((target / file.name).read_bytes())
        for tensor in file.tensors:
            ranks[file.rank][tensor.name] = hashlib.sha256(data[tensor.begin : tensor.end]).hexdigest()
    return ranks
