"""By kernels-community/rotary: FlashAttention's apply_rotary for CUDA, Intel's GPUs and CPUs."""

from __future__ import annotations

import torch

from kernels import get_kernel

theirs = get_kernel("kernels-community/rotary", version=2)


def declines(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
) -> str:
    """Why the kernel has nothing for this call; nothing: it has."""
    return "" if positions.numel() else "no tokens"


def run(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.py. The kernel takes cosines and sines of the heads' dtype only, one row for each token."""
    rotary = cos_sin.shape[-1]
    cos, sin = cos_sin[positions].to(query.dtype).unsqueeze(1).chunk(2, dim=-1)

    def turned(heads: torch.Tensor) -> torch.Tensor:
        out = heads.clone(memory_format=torch.contiguous_format)
        part = out[..., :rotary]
        first, second = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
        theirs.apply_rotary(first, second, cos, sin, first, second, False)
        return out

    return turned(query), turned(key)
