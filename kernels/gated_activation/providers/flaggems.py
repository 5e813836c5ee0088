"""By FlagGems' silu_and_mul and gelu_and_mul, which take gate and up apart, in any layout."""

from __future__ import annotations

import flag_gems
import torch


def declines(
    x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    if limit is not None or alpha != 1 or beta != 0:
        return "no limit, alpha or beta"
    return "" if activation in ("silu", "gelu", "gelu_tanh") else f"no {activation}"


def run(
    x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
) -> torch.Tensor:
    """See reference.py."""
    gate, up = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    if activation == "silu":
        return flag_gems.silu_and_mul(gate, up).contiguous()
    return flag_gems.gelu_and_mul(gate, up, "tanh" if activation == "gelu_tanh" else "none").contiguous()
