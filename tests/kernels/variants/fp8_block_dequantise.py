"""FP8 block dequantise."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, NARROW, WIDE, Compute, Outputs, Variants, rounded

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]


def scaled(
    multiply: Multiply = lambda codes, by, dtype: (codes * by).to(dtype),
    by: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = lambda scales, _: scales,
    rows: float = 1,
    columns: float = 1,
    short: int = 0,
) -> Compute:
    """The operator with one way to multiply; blocks have `rows` and `columns` times the size that they should."""

    def run(
        codes: torch.Tensor, scales: torch.Tensor, block_rows: int, block_columns: int, dtype: torch.dtype
    ) -> Outputs:
        height, width = codes.shape[-2:]
        down = (torch.arange(height) // max(1, int(block_rows * rows))).clamp(max=max(0, scales.shape[-2] - 1))
        across = (torch.arange(width) // max(1, int(block_columns * columns))).clamp(max=max(0, scales.shape[-1] - 1))
        spread = by(scales, dtype)[..., down, :][..., across]
        result = multiply(codes.float(), spread, dtype)
        if short:
            result[..., -short:] = 0
        return (result,)

    return run


def _rounded_scales(dtype: torch.dtype | None) -> Callable[[torch.Tensor, torch.dtype], torch.Tensor]:
    return lambda scales, own: rounded(scales, dtype or own)


VARIANTS = Variants(
    honest={
        "a product in float32": (scaled(), ALL),
        "in float64": (scaled(lambda codes, by, dtype: (codes.double() * by.double()).to(dtype)), ALL),
        "halved and doubled": (scaled(lambda codes, by, dtype: (codes * 2.0**-8 * (by * 2.0**8)).to(dtype)), ALL),
    },
    wrong={
        "scales in TF32": (scaled(by=lambda scales, _: arithmetic.coarse(scales, 10)), WIDE),
        "scales in float16": (scaled(by=_rounded_scales(torch.float16)), WIDE),
        "scales in bfloat16": (scaled(by=_rounded_scales(torch.bfloat16)), ("float32", "float16")),
        "scales of the result's dtype": (scaled(by=_rounded_scales(None)), NARROW),
        "the product in bfloat16": (
            scaled(lambda codes, by, dtype: rounded(codes * by, torch.bfloat16).to(dtype)),
            ("float32", "float16"),
        ),
        "cut toward zero": (
            scaled(lambda codes, by, dtype: arithmetic.cut(codes.double() * by.double(), dtype)),
            ALL,
        ),
        "blocks half as wide": (scaled(columns=0.5), ALL),
        "blocks twice as high": (scaled(rows=2), ALL),
        "the last result left": (scaled(short=1), ALL),
    },
)
