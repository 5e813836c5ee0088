"""Shapes of rotary embeddings in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch


def _case(
    tokens: int, query_heads: int, key_heads: int, head_size: int, rotary: int, interleaved: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "query_heads": query_heads,
        "key_heads": key_heads,
        "head_size": head_size,
        "rotary": rotary,
        "interleaved": interleaved,
        **more,
    }


CASES: list[dict[str, Any]] = [
    _case(1, 1, 1, 2, 2),
    _case(3, 2, 1, 10, 6),
    _case(3, 2, 1, 10, 6, True),
    _case(17, 8, 2, 80, 80, note="head size 80"),
    _case(33, 4, 4, 96, 24, note="a quarter of the head turns"),
    _case(5, 3, 1, 66, 34, True),
    _case(9, 8, 2, 128, 128, fused=True, note="slices of one query-key-value row"),
    _case(9, 128, 1, 192, 64, True, fused=True, note="DeepSeek-V3"),
    _case(0, 8, 2, 128, 128),
    _case(132000, 128, 1, 128, 128, huge=True, note="more than 2^31 numbers in the queries"),
    _case(1, 64, 8, 128, 128, bench=True, note="Llama 3 70B, decode"),
    _case(16, 64, 8, 128, 128, bench=True),
    _case(4096, 64, 8, 128, 128, bench=True, note="Llama 3 70B, prefill"),
    _case(4096, 64, 64, 64, 64, True, bench=True),
    _case(32768, 64, 64, 64, 64, bench=True),
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(positions, query, key, cos_sin, interleaved); angles of base 10000 over 2048 positions."""
    tokens, size, rotary = case["tokens"], case["head_size"], case["rotary"]
    heads = case["query_heads"] + case["key_heads"]
    extra = case["key_heads"] if case.get("fused") else 0
    both = torch.randn(tokens, heads + extra, size, generator=generator, device=device, dtype=torch.float32).to(dtype)
    query, key = both[:, : case["query_heads"]], both[:, case["query_heads"] : heads]
    if not case.get("fused"):
        query, key = query.contiguous(), key.contiguous()
    frequencies = 10000.0 ** (-torch.arange(0, rotary, 2, device=device, dtype=torch.float64) / rotary)
    angles = torch.arange(2048, device=device, dtype=torch.float64)[:, None] * frequencies
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1).to(torch.float32)
    positions = torch.randint(0, 2048, (tokens,), generator=generator, device=device)
    return positions, query, key, cos_sin, case["interleaved"]


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Rows among zeros, of which the last lie beyond 2^31 elements of arguments and results."""
    at = torch.tensor([0, 1, case["tokens"] // 2, case["tokens"] - 2, case["tokens"] - 1])
    small = make({**case, "tokens": len(at)}, dtype, generator, str(generator.device))
    *tensors, cos_sin, interleaved = small
    args = (*(placed(tensor, case["tokens"], at) for tensor in tensors), cos_sin, interleaved)
    return args, small, lambda outputs: tuple(output[at] for output in outputs)
