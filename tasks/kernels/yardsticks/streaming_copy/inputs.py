"""Sizes of a copy: none, tails and whole vectors."""

from __future__ import annotations

from typing import Any

import torch

CASES: list[dict[str, Any]] = [
    *({"size": size} for size in (0, 1, 7, 16, 1023, 70001)),
    {"size": 1 << 27, "bench": True},
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(x,)"""
    return (torch.randn(case["size"], generator=generator, device=device, dtype=torch.float32).to(dtype),)
