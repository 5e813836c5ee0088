"""Reads what was written, for tests, with the format's own library: an independent reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import deserialize


def tensors_in(folder: Path, pattern: str = "*.safetensors") -> dict[str, np.ndarray]:
    """Every tensor of the matching files: bf16 as raw 16-bit words (numpy has no bf16), float32 as it is."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob(pattern)):
        for name, entry in deserialize(path.read_bytes()):
            kind = {"BF16": "<u2", "F32": "<f4"}[entry["dtype"]]
            assert name not in found, f"{name} is in two files"
            found[name] = np.frombuffer(bytes(entry["data"]), kind).reshape(entry["shape"])
    return found


def rank_tensors(folder: Path, rank: int) -> dict[str, np.ndarray]:
    """A rank's tensors in layout `vllm`."""
    return tensors_in(folder, f"model-rank-{rank}-part-*.safetensors")
