"""Shapes of gated activations in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch

_GPT_OSS = {"limit": 7.0, "alpha": 1.702, "beta": 1.0, "interleaved": True}

CASES: list[dict[str, Any]] = [
    {"rows": 1, "size": 1},
    {"rows": 3, "size": 7, "activation": "gelu"},
    {"rows": 3, "size": 7, **_GPT_OSS},
    {"rows": 5, "size": 33, "activation": "gelu_tanh"},
    {"rows": 2, "size": 1023, "interleaved": True},
    {"rows": 9, "size": 1023, "limit": 2.0},
    {"rows": 4, "size": 2048, "note": "DeepSeek-V3, expert"},
    {"rows": 4, "size": 2880, **_GPT_OSS, "note": "gpt-oss"},
    {"rows": 2, "size": 15360, "activation": "gelu_tanh", "note": "Gemma 3 12B"},
    {"rows": 2, "size": 4096, "activation": "gelu"},
    {"rows": 3, "size": 18432, "note": "DeepSeek-V3, dense layer"},
    {"rows": 3, "size": 40, "alpha": 1.702, "note": "no limit"},
    {"rows": 3, "size": 40, "beta": 1.0},
    {"rows": 0, "size": 4096},
    {"rows": 150000, "size": 14336, "huge": True, "note": "more than 2^31 results"},
    {"rows": 1, "size": 14336, "bench": True, "note": "Llama 3 8B, decode"},
    {"rows": 16, "size": 14336, "bench": True},
    {"rows": 4096, "size": 8192, "bench": True, "note": "prefill"},
    {"rows": 4096, "size": 2880, **_GPT_OSS, "bench": True},
    {"rows": 32768, "size": 2048, "bench": True},
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(x, activation, limit, alpha, beta, interleaved); gates from far below zero to above the limit."""
    x = 3 * torch.randn(case["rows"], 2 * case["size"], generator=generator, device=device, dtype=torch.float32)
    options = (case.get("limit"), case.get("alpha", 1.0), case.get("beta", 0.0), case.get("interleaved", False))
    return x.to(dtype), case.get("activation", "silu"), *options


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Rows among zeros, of which the last lie beyond 2^31 elements of arguments and results."""
    at = torch.tensor([0, 1, case["rows"] // 2, case["rows"] - 2, case["rows"] - 1])
    small = make({**case, "rows": len(at)}, dtype, generator, str(generator.device))
    args = (placed(small[0], case["rows"], at), *small[1:])
    return args, small, lambda outputs: tuple(output[at] for output in outputs)
