"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

import torch


def reference(
    x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
) -> tuple[torch.Tensor]:
    """`activation(gate) * (up + beta)` for x of (…, 2 size), gate first then up, or in turn where interleaved.

    `activation` is `silu` (gate * sigmoid(alpha * gate)), `gelu` (by the error function) or `gelu_tanh`. With a limit
    the gate is at most the limit and up within it on both sides. SwiGLU of Llama is silu, alpha 1, beta 0; of gpt-oss
    silu, limit 7, alpha 1.702, beta 1, interleaved.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    gate, up = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    # GELU by erfc and by the sigmoid: 1 + erf and 1 + tanh lose all digits for gates below about -5.
    if activation == "silu":
        active = gate * torch.sigmoid(alpha * gate)
    elif activation == "gelu":
        active = gate * (torch.erfc(gate * -(0.5**0.5)) / 2)
    elif activation == "gelu_tanh":
        active = gate * torch.sigmoid((8 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))
    else:
        raise ValueError(f"activation must be silu, gelu or gelu_tanh, got {activation!r}")
    return ((active * (up + beta)).to(x.dtype),)
