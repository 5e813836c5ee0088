"""Rotary embedding."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, NARROW, WIDE, Compute, Outputs, Variants, fused, rounded

Pair = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.dtype], Outputs]


def turned(pair: Pair, angles: torch.dtype | None = None, shift: int = 0, short: int = 0) -> Compute:
    """The operator with one way to turn a pair; `angles` is what cosines and sines are rounded to (float32 for as they
    are, None the heads' dtype)."""

    def run(
        positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
    ) -> Outputs:
        rotary = cos_sin.shape[-1]
        table = rounded(cos_sin, angles or query.dtype)
        cos, sin = table[(positions + shift).clamp(max=len(table) - 1)].unsqueeze(1).chunk(2, dim=-1)

        def one(heads: torch.Tensor) -> torch.Tensor:
            part, rest = heads[..., :rotary].float(), heads[..., rotary:]
            first, second = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
            left, right = pair(first, second, cos, sin, heads.dtype)
            if short and first.shape[-1] > short:
                left, right = (
                    torch.cat((new[..., :-short], old[..., -short:]), dim=-1)
                    for new, old in ((left, first), (right, second))
                )
            joined = torch.stack((left, right), dim=-1).flatten(-2) if interleaved else torch.cat((left, right), dim=-1)
            return torch.cat((joined.to(heads.dtype), rest), dim=-1)

        return one(query), one(key)

    return run


def _plain(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.dtype) -> Outputs:
    return a * cos - b * sin, b * cos + a * sin


def _fused_last(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.dtype) -> Outputs:
    return fused(-b, sin, a * cos), fused(a, sin, b * cos)


def _fused_first(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.dtype) -> Outputs:
    return fused(a, cos, -(b * sin)), fused(b, cos, a * sin)


def _in_float64(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.dtype) -> Outputs:
    a, b, cos, sin = a.double(), b.double(), cos.double(), sin.double()
    return (a * cos - b * sin).float(), (b * cos + a * sin).float()


def _rounded_products(dtype: torch.dtype | None) -> Pair:
    def pair(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, own: torch.dtype) -> Outputs:
        to = dtype or own
        return (
            rounded(a * cos, to) - rounded(b * sin, to),
            rounded(b * cos, to) + rounded(a * sin, to),
        )

    return pair


def _half_tf32(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.dtype) -> Outputs:
    return _plain(arithmetic.coarse(a, 10), arithmetic.coarse(b, 10), cos, sin, _)


def _cut(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, own: torch.dtype) -> Outputs:
    left, right = _plain(a, b, cos, sin, own)
    return arithmetic.cut(left, own).float(), arithmetic.cut(right, own).float()


def _wrong_sign(a: torch.Tensor, b: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, _: torch.dtype) -> Outputs:
    return a * cos + b * sin, b * cos - a * sin


_EXACT = torch.float32
VARIANTS = Variants(
    honest={
        "two products and a sum": (turned(_plain, _EXACT), ALL),
        "the second product fused": (turned(_fused_last, _EXACT), ALL),
        "the first product fused": (turned(_fused_first, _EXACT), ALL),
        "in float64": (turned(_in_float64, _EXACT), ALL),
        "angles of the heads' dtype, as the hub's kernel has them": (turned(_plain), NARROW),
        "products rounded": (turned(_rounded_products(None), _EXACT), NARROW),
        "products and angles rounded, as transformers and vLLM do": (turned(_rounded_products(None)), NARROW),
    },
    wrong={
        "heads in TF32": (turned(_half_tf32, _EXACT), WIDE),
        "angles in float16": (turned(_plain, torch.float16), WIDE),
        "angles in bfloat16": (turned(_plain, torch.bfloat16), ("float32", "float16")),
        "products in bfloat16": (turned(_rounded_products(torch.bfloat16), _EXACT), ("float32", "float16")),
        "cut toward zero": (turned(_cut, _EXACT), NARROW),
        "the next position": (turned(_plain, _EXACT, shift=1), ALL),
        "the last pair left": (turned(_plain, _EXACT, short=1), ALL),
        "turned the other way": (turned(_wrong_sign, _EXACT), ALL),
    },
)
