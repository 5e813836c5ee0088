"""By kernels-community/rmsnorm, which has RMSNorm for CPUs and Intel's GPUs; the sum is torch's."""

from __future__ import annotations

import torch

from kernels import get_kernel

theirs = get_kernel("kernels-community/rmsnorm", version=1)


def declines(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> str:
    """Why the kernel has nothing for this call; nothing: it has."""
    return "" if x.numel() else "no rows"


def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.py."""
    total = (x + residual).contiguous()
    return theirs.apply_rms_norm(total, weight.contiguous(), eps), total
