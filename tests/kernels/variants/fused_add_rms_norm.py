"""Residual + RMSNorm."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, NARROW, WIDE, Compute, Outputs, Variants, rounded

Sum = Callable[[torch.Tensor], torch.Tensor]


def normalised(
    sum_of: Sum | None = None,
    root: Callable[[torch.Tensor], torch.Tensor] = torch.rsqrt,
    rounds_sum: bool = False,
    rounds_row: bool = False,
    weight_first: bool = False,
    drops: int = 0,
    divisor: int = 0,
    last: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = torch.Tensor.to,
) -> Compute:
    """The operator with one way of each of its steps."""

    def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Outputs:
        total = x.float() + residual.float()
        used = rounded(total, x.dtype) if rounds_sum else total
        squares = used.square()[..., : used.shape[-1] - drops]
        size = used.shape[-1] + divisor
        mean = sum_of(squares) / size if sum_of else squares.sum(dim=-1) / size
        scale = root(mean + eps).unsqueeze(-1)
        if weight_first:
            return last(used * weight.float() * scale, x.dtype), total.to(x.dtype)
        row = rounded(used * scale, x.dtype) if rounds_row else used * scale
        return last(row * weight.float(), x.dtype), total.to(x.dtype)

    return run


def _fused_products(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Outputs:
    total = x.float() + residual.float()
    mean = arithmetic.running_fused(total, total) / total.shape[-1]
    return (total * torch.rsqrt(mean + eps).unsqueeze(-1) * weight.float()).to(x.dtype), total.to(x.dtype)


VARIANTS = Variants(
    honest={
        "running sum": (normalised(arithmetic.running), ALL),
        "running sum, reversed": (normalised(lambda terms: arithmetic.running(terms.flip(-1))), ALL),
        "running sum of fused products": (_fused_products, ALL),
        "lanes of 16": (normalised(lambda terms: arithmetic.lanes(terms, 16)), ALL),
        "a warp's 32 lanes": (normalised(lambda terms: arithmetic.lanes(terms, 32)), ALL),
        "a block's 1024 threads": (normalised(lambda terms: arithmetic.lanes(terms, 1024)), ALL),
        "pairwise": (normalised(arithmetic.pairwise), ALL),
        "compensated": (normalised(arithmetic.compensated), ALL),
        "in float64": (normalised(lambda terms: terms.double().sum(dim=-1).float()), ALL),
        "approximate root": (normalised(root=arithmetic.rsqrt_approx), ALL),
        "root divided": (normalised(root=lambda mean: 1 / mean.sqrt()), ALL),
        "weight first": (normalised(weight_first=True), ALL),
        "sum rounded first": (normalised(rounds_sum=True), NARROW),
        "transformers' order": (normalised(rounds_sum=True, rounds_row=True), NARROW),
    },
    wrong={
        "sum in bfloat16": (normalised(lambda terms: arithmetic.narrow_running(terms, torch.bfloat16)), ALL),
        "sum in float16": (normalised(lambda terms: arithmetic.narrow_running(terms, torch.float16)), WIDE),
        "cut toward zero": (normalised(last=arithmetic.cut), NARROW),
        "one square dropped": (normalised(drops=1), WIDE),
        "divided by one more": (normalised(divisor=1), WIDE),
    },
)
