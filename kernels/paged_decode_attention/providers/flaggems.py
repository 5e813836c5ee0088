"""By FlagGems' flash_attn_varlen_func, each sequence with one query."""

from __future__ import annotations

import flag_gems
import torch

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
    """Why FlagGems has nothing for this call; nothing: it has."""
    if key_scale is not None or value_scale is not None:
        return "no FP8 cache"
    if query.dtype not in (torch.bfloat16, torch.float16):
        return "bfloat16 and float16 only"
    size = query.shape[-1]
    if key_cache.shape != value_cache.shape or size % 8 or size > _LARGEST_HEAD:
        return f"keys and values of one size, a multiple of 8 up to {_LARGEST_HEAD}, only"
    if key_cache.shape[1] % 16:
        return "blocks of a multiple of 16 tokens only"
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
    sequences = query.shape[0]
    starts = torch.arange(sequences + 1, device=query.device, dtype=torch.int32)
    out: torch.Tensor = flag_gems.flash_attn_varlen_func(
        query.contiguous(),
        key_cache.contiguous(),
        value_cache.contiguous(),
        max_seqlen_q=1,
        cu_seqlens_q=starts,
        max_seqlen_k=block_table.shape[1] * key_cache.shape[1],
        seqused_k=lengths.contiguous(),
        softmax_scale=scale,
        causal=True,
        window_size=None if window is None else (window - 1, 0),
        softcap=soft_cap or 0.0,
        block_table=block_table.contiguous(),
    )
    return out
