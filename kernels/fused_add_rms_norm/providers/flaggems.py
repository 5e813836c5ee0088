"""By FlagGems' fused_add_rms_norm, which works in place."""

from __future__ import annotations

import flag_gems
import torch


def declines(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    return ""


def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.py. FlagGems writes both results over its arguments, so it is given copies."""
    rows, total = (t.clone(memory_format=torch.contiguous_format) for t in (x, residual))
    normalised, total = flag_gems.fused_add_rms_norm(rows, total, [x.shape[-1]], weight, eps)
    return normalised, total
