"""Shapes of decode attention in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch


def _case(sequences: int, length: int, query_heads: int, heads: int, key_size: int, **more: Any) -> dict[str, Any]:
    sizes = {"sequences": sequences, "length": length, "query_heads": query_heads, "heads": heads}
    options = {"value_size": key_size, "block_size": 16, "fp8": False, "window": 0}
    return {**sizes, "key_size": key_size, **options, **more}


CASES: list[dict[str, Any]] = [
    _case(1, 1, 1, 1, 1),
    _case(3, 7, 2, 1, 7, block_size=3),
    _case(2, 33, 6, 2, 33, value_size=17, block_size=5),
    _case(5, 100, 8, 8, 64, note="one query head for each"),
    _case(3, 1023, 32, 8, 128, note="Llama 3 8B"),
    _case(3, 700, 32, 8, 128, fp8=True, note="FP8 cache"),
    _case(2, 300, 14, 2, 64, fp8=True, by_head=True, block_size=32, note="Qwen2.5-0.5B, a scale for each head"),
    _case(2, 900, 16, 8, 256, window=512, soft_cap=50.0, spread=4.0, note="Gemma 2 9B, a local layer"),
    _case(2, 257, 64, 8, 64, window=128, note="gpt-oss"),
    _case(1, 3000, 128, 4, 192, value_size=128, note="32 query heads for each"),
    _case(4, 40, 8, 2, 128, empty=True, note="sequences of no length"),
    _case(0, 16, 8, 2, 128),
    _case(3, 40, 16, 8, 256, blocks=70000, huge=True, note="more than 2^31 numbers in each cache"),
    _case(32, 1024, 32, 8, 128, bench=True, note="Llama 3 8B"),
    _case(1, 32768, 32, 8, 128, bench=True),
    _case(8, 8192, 64, 8, 128, bench=True, note="Llama 3 70B"),
    _case(8, 8192, 64, 8, 128, fp8=True, bench=True),
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(query, key_cache, value_cache, block_table, lengths, scale, soft_cap, window, key_scale, value_scale).

    Scores are normal, of the standard deviation `spread`: where there is a soft cap some come near it, and what they
    are rounded to shows. The first sequence has the full length, the others in benchmarks too and else any; blocks lie
    in any order.
    """
    sequences, length, heads, block = case["sequences"], case["length"], case["heads"], case["block_size"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    across = -(-length // block)
    blocks = sequences * across + 1
    cached = torch.float8_e4m3fn if case["fp8"] else dtype
    query = (case.get("spread", 1.0) * normal(sequences, case["query_heads"], case["key_size"])).to(dtype)
    caches = [normal(blocks, block, heads, case[size]).to(cached) for size in ("key_size", "value_size")]
    order = torch.randperm(blocks, generator=generator, device=device)[: sequences * across]
    table = order.reshape(sequences, across).to(torch.int32)
    lengths = torch.full((sequences,), length, device=device, dtype=torch.int32)
    if not case.get("bench") and sequences > 1:
        least = 0 if case.get("empty") else 1
        lengths[1:] = torch.randint(least, length + 1, (sequences - 1,), generator=generator, device=device)
        if case.get("empty"):
            lengths[-1] = 0
    scales: list[torch.Tensor | None] = [None, None]
    if case["fp8"]:
        count = heads if case.get("by_head") else 1
        scales = [0.5 + torch.rand(count, generator=generator, device=device, dtype=torch.float32) for _ in caches]
    options = (case["key_size"] ** -0.5, case.get("soft_cap"), case["window"] or None)
    return query, *caches, table, lengths, *options, *scales


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """A few blocks far apart, of which the last lies beyond 2^31 elements of the caches."""
    small = make(case, dtype, generator, str(generator.device))
    query, key_cache, value_cache, table, *rest = small
    few = len(key_cache)
    at = torch.arange(few) * (case["blocks"] - 1) // (few - 1)
    caches = (placed(cache, case["blocks"], at) for cache in (key_cache, value_cache))
    far = at.to(table.device)[table.long()].to(torch.int32)
    return (query, *caches, far, *rest), small, lambda outputs: outputs
