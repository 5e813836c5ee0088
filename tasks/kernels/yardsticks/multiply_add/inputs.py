"""A few rows; each is one thread's work of 24 registers of sixteen numbers."""

from __future__ import annotations

from typing import Any

import torch

CASES: list[dict[str, Any]] = [
    {"rows": 0, "steps": 3},
    {"rows": 1, "steps": 0},
    {"rows": 3, "steps": 1001},
    {"rows": 64, "steps": 100_000, "bench": True},
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(x, steps); whole numbers, so that float32 is exact."""
    x = torch.randint(-9, 9, (case["rows"], 384), generator=generator, device=device).to(dtype)
    return x, case["steps"]
