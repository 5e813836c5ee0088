"""What the reshard is held against: the kernel's own copy, cp, SHA-256 alone, and the format's library with torch."""

from __future__ import annotations

import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from day0.checkpoint import Checkpoint

CORES = len(os.sched_getaffinity(0))


def copy(checkpoint: Checkpoint, target: Path) -> None:
    """The shards by copy_file_range, a thread each as far as there are cores, and fsync."""
    target.mkdir()

    def one(name: str) -> None:
        with checkpoint.path(name).open("rb") as source, (target / name).open("wb") as out:
            left = os.fstat(source.fileno()).st_size
            while left:
                left -= os.copy_file_range(source.fileno(), out.fileno(), left)
            os.fsync(out.fileno())

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(one, checkpoint.files))


def cp(checkpoint: Checkpoint, target: Path) -> None:
    """By the system's cp, without sharing blocks, and fsync."""
    target.mkdir()
    subprocess.run(
        ["cp", "--reflink=never", *(str(checkpoint.path(name)) for name in checkpoint.files), str(target)], check=True
    )
    subprocess.run(["sync", *(str(target / name) for name in checkpoint.files)], check=True)


def sha256(nbytes: int) -> None:
    """SHA-256 of so many bytes on all cores, from a block that stays in the processor's cache."""
    block = bytes(1 << 20)

    def one(_: int) -> None:
        digest = hashlib.sha256()
        for _ in range(nbytes // CORES // len(block)):
            digest.update(block)

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(one, range(CORES)))


def torch_split(checkpoint: Checkpoint, target: Path, tp: int, pool: bool = False) -> None:
    """How it is done with the format's own library: each tensor cut with torch, each rank's part of a shard saved.

    One shard after another, torch's own threads on all cores; with `pool` as many shards at once as there are cores,
    which takes as many times the memory.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    torch.set_num_threads(1 if pool else CORES)
    target.mkdir()

    def one(name: str) -> None:
        ranks: list[dict[str, Any]] = [{} for _ in range(tp)]
        with safe_open(checkpoint.path(name), "pt") as shard:
            for key in shard.keys():  # noqa: SIM118 (it is no mapping)
                tensor = shard.get_tensor(key)
                dim = 1 if "o_proj" in key or "down_proj" in key else 0
                whole = tensor.ndim == 1 or "mlp.gate.weight" in key
                for rank, part in enumerate([tensor] * tp if whole else tensor.chunk(tp, dim)):
                    ranks[rank][key] = part.contiguous()
        for rank, tensors in enumerate(ranks):
            save_file(tensors, target / f"rank-{rank}-{name}")

    with ThreadPoolExecutor(CORES if pool else 1) as threads:
        list(threads.map(one, checkpoint.files))


def forget(checkpoint: Checkpoint) -> None:
    """Let the kernel's cache forget the shards."""
    os.sync()
    for name in checkpoint.files:
        with checkpoint.path(name).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
