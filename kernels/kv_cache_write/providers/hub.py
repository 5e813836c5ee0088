"""By kernels-community/paged-attention: vLLM's reshape_and_cache_flash for CUDA and ROCm."""

from __future__ import annotations

import torch

from kernels import get_kernel

theirs = get_kernel("kernels-community/paged-attention", version=1)


def declines(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> str:
    """Why the kernel has nothing for this call; nothing: it has."""
    if key.shape != value.shape:
        return "keys and values of one size only"
    if any(scale is not None and scale.numel() != 1 for scale in (key_scale, value_scale)):
        return "one scale for all heads only"
    if not key_cache.is_contiguous() or not value_cache.is_contiguous():
        return "contiguous caches only"
    return "" if key.numel() else "no tokens"


def run(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> None:
    """See reference.py. It takes FP8 caches as bytes, and always two scales."""
    fp8 = key_scale is not None
    caches = (key_cache.view(torch.uint8), value_cache.view(torch.uint8)) if fp8 else (key_cache, value_cache)
    one = key.new_ones((), dtype=torch.float32) if key_scale is None or value_scale is None else None
    scales = (one if scale is None else scale for scale in (key_scale, value_scale))
    theirs.reshape_and_cache_flash(
        key.contiguous(), value.contiguous(), *caches, slots.contiguous(), "fp8" if fp8 else "auto", *scales
    )
