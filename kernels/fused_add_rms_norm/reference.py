"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

import torch


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`(norm(x + residual) * weight, x + residual)` over the last dimension; (…, hidden) and weight (hidden,).

    The sum is normalised before it is rounded, as fused kernels do it; transformers rounds it first.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    total = x.to(wide) + residual.to(wide)
    scale = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps)
    return (total * scale * weight.to(wide)).to(x.dtype), total.to(x.dtype)
