"""By kernels-community/activation: vLLM's kernels for CUDA and ROCm, and SiLU for CPUs."""

from __future__ import annotations

import torch

from kernels import get_kernel

theirs = get_kernel("kernels-community/activation", version=1)

_NAMES = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}


def declines(
    x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
) -> str:
    """Why the kernel has nothing for this call; nothing: it has."""
    if limit is not None or alpha != 1 or beta != 0 or interleaved:
        return "no limit, alpha or beta, and gate and up not in turn"
    if activation not in _NAMES or (x.device.type == "cpu" and activation != "silu"):
        return f"no {activation} for {x.device.type}"
    return "" if x.numel() else "no rows"


def run(
    x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
) -> torch.Tensor:
    """See reference.py."""
    out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    getattr(theirs, _NAMES[activation])(out, x.contiguous())
    return out
