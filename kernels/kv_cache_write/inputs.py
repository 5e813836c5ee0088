"""Shapes of cache writes in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch


def _case(tokens: int, heads: int, key_size: int, value_size: int = 0, fp8: bool = False, **more: Any) -> Any:
    sizes = {"tokens": tokens, "heads": heads, "key_size": key_size, "value_size": value_size or key_size}
    return {**sizes, "fp8": fp8, "block_size": more.pop("block_size", 16), **more}


CASES: list[dict[str, Any]] = [
    _case(1, 1, 1),
    _case(3, 2, 7, 5),
    _case(3, 2, 7, 5, True),
    _case(33, 3, 33, 33, True, block_size=5, by_head=True),
    _case(17, 8, 128, note="Llama 3"),
    _case(17, 8, 128, fp8=True, note="Llama 3, FP8 cache"),
    _case(9, 4, 192, 128, note="DeepSeek-V3 without absorbed projections"),
    _case(5, 1, 576, 576, True, block_size=64, note="DeepSeek-V3, latent cache"),
    _case(40, 2, 64, 64, True, padding=7, note="padded tokens"),
    _case(0, 8, 128),
    _case(1100000, 8, 256, huge=True, note="more than 2^31 numbers"),
    _case(64, 8, 128, bench=True, note="decode"),
    _case(8192, 8, 128, bench=True, note="prefill"),
    _case(8192, 8, 128, fp8=True, bench=True),
    _case(32768, 8, 128, fp8=True, bench=True),
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(key, value, key_cache, value_cache, slots, key_scale, value_scale); a third more slots than tokens."""
    tokens, heads, block = case["tokens"], case["heads"], case["block_size"]

    def normal(*shape: int) -> torch.Tensor:
        return 30 * torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    blocks = (4 * tokens // 3 + block) // block
    sizes = (case["key_size"], case["value_size"])
    cached = torch.float8_e4m3fn if case["fp8"] else dtype
    new = [normal(tokens, heads, size).to(dtype) for size in sizes]
    caches = [normal(blocks, block, heads, size).to(cached) for size in sizes]
    slots = torch.randperm(blocks * block, generator=generator, device=device)[:tokens]
    if padding := case.get("padding"):
        slots[-padding:] = -1
    scales: list[torch.Tensor | None] = [None, None]
    if case["fp8"]:
        count = heads if case.get("by_head") else 1
        scales = [0.05 + torch.rand(count, generator=generator, device=device, dtype=torch.float32) for _ in sizes]
    return *new, *caches, slots, *scales


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """A few tokens among padding, and blocks of the caches, of which the last lie beyond 2^31 elements."""
    tokens, block = case["tokens"], case["block_size"]
    which = torch.arange(40) * (tokens - 1) // 39
    small = make({**case, "tokens": len(which)}, dtype, generator, str(generator.device))
    key, value, key_cache, value_cache, slots, *scales = small
    blocks, few = 4 * tokens // 3 // block, len(key_cache)
    at = torch.arange(few) * (blocks - 1) // (few - 1)
    where = at.to(slots.device)[slots // block] * block + slots % block
    spread = torch.full((tokens,), -1, device=slots.device, dtype=slots.dtype)
    spread[which.to(slots.device)] = where
    new = (placed(tensor, tokens, which) for tensor in (key, value))
    caches = (placed(tensor, blocks, at) for tensor in (key_cache, value_cache))
    return (*new, *caches, spread, *scales), small, lambda outputs: tuple(cache[at] for cache in outputs)
