"""By FlagGems' reshape_and_cache_flash."""

from __future__ import annotations

import flag_gems
import torch


def declines(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    if key_scale is not None or value_scale is not None:
        return "no FP8 cache"
    if key.shape != value.shape:
        return "keys and values of one size only"
    return "" if key_cache.is_contiguous() and value_cache.is_contiguous() else "contiguous caches only"


def run(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> None:
    """See reference.py. It reads a token's heads as one row, whatever their strides."""
    flag_gems.reshape_and_cache_flash(
        key.contiguous(), value.contiguous(), key_cache, value_cache, slots.contiguous(), "auto", None, None
    )
