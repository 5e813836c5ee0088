"""Shapes of residual + RMSNorm in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch

CASES: list[dict[str, Any]] = [
    {"rows": 1, "hidden": 1},
    {"rows": 3, "hidden": 7},
    {"rows": 5, "hidden": 33},
    {"rows": 2, "hidden": 576},
    {"rows": 17, "hidden": 1023},
    {"rows": 64, "hidden": 2048},
    {"rows": 7, "hidden": 7168},
    {"rows": 1, "hidden": 16384, "note": "Llama 3.1 405B, decode"},
    {"rows": 3, "hidden": 40, "spread": 1e-3, "note": "epsilon counts"},
    {"rows": 0, "hidden": 4096},
    {"rows": 300000, "hidden": 7168, "huge": True, "note": "more than 2^31 elements"},
    {"rows": 16, "hidden": 7168, "bench": True, "note": "DeepSeek-V3, decode"},
    {"rows": 4096, "hidden": 7168, "bench": True, "note": "DeepSeek-V3, prefill"},
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(x, residual, weight, eps); the residual stream is an order larger than a layer's output, as in a model."""
    rows, hidden, spread = case["rows"], case["hidden"], case.get("spread", 1.0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    x, residual = (spread * normal(rows, hidden)).to(dtype), (8 * spread * normal(rows, hidden)).to(dtype)
    return x, residual, (1 + 0.2 * normal(hidden)).to(dtype), 1e-6


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Rows among zeros, of which the last lie beyond 2^31 elements of arguments and results."""
    at = torch.tensor([0, 1, case["rows"] // 2, case["rows"] - 2, case["rows"] - 1])
    small = make({**case, "rows": len(at)}, dtype, generator, str(generator.device))
    x, residual, *rest = small
    args = (*(placed(tensor, case["rows"], at) for tensor in (x, residual)), *rest)
    return args, small, lambda outputs: tuple(output[at] for output in outputs)
