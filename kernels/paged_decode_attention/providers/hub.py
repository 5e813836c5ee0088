"""By kernels-community/flash-attn3, FlashAttention-3 for NVIDIA's Hopper, each sequence with one query."""

from __future__ import annotations

import torch

from kernels import get_kernel

theirs = get_kernel("kernels-community/flash-attn3", version=1)

_LARGEST_HEAD = 256


def declines(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> str:
    """Why the kernel has nothing for this call; nothing: it has."""
    if key_scale is not None or value_scale is not None:
        return "FP8 caches with FP8 queries only"
    if query.dtype not in (torch.bfloat16, torch.float16):
        return "bfloat16 and float16 only"
    size = query.shape[-1]
    if key_cache.shape != value_cache.shape or size % 8 or size > _LARGEST_HEAD:
        return f"keys and values of one size, a multiple of 8 up to {_LARGEST_HEAD}, only"
    return "" if query.shape[0] else "no sequences"


def run(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> torch.Tensor:
    """See reference.py. Its window counts the tokens before the query's own, which is the last."""
    out: torch.Tensor = theirs.flash_attn_with_kvcache(
        query.contiguous().unsqueeze(1),
        key_cache.contiguous(),
        value_cache.contiguous(),
        cache_seqlens=lengths.contiguous(),
        page_table=block_table.contiguous(),
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1) if window is None else (window - 1, 0),
        softcap=soft_cap or 0.0,
    )
    return out.squeeze(1)
