"""Grouped expert matmul."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, NARROW, WIDE, Compute, Outputs, Variants, rounded

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Last = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def grouped(
    product: Product = lambda left, right: left @ right.T,
    last: Last = torch.Tensor.to,
    rounds_weight: bool = False,
    by_block: Product | None = None,
    block: float = 1,
    drops: int = 0,
    shift: int = 0,
    x_of: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
) -> Compute:
    """The operator with one way of each of its steps.

    Args:
        by_block: multiplies codes of one block of the inner dimension, and the scales come after it; None: scales
            come first.
        block: how many times as wide the blocks of scales are as they should be.
        drops: numbers of the inner dimension left out.
        shift: added to where experts end.
    """

    def run(
        x: torch.Tensor,
        weight: torch.Tensor,
        ends: torch.Tensor,
        x_scale: torch.Tensor | None,
        weight_scale: torch.Tensor | None,
        block_rows: int,
        block_columns: int,
        dtype: torch.dtype,
    ) -> Outputs:
        rows, inner, columns = x.shape[0], x.shape[1], weight.shape[1]
        kept = inner - drops if inner > 1 else inner
        place = torch.arange(inner) // max(1, int(block_columns * block))
        out = torch.zeros(rows, columns, dtype=dtype)
        begin = 0
        for expert, end in enumerate(ends.tolist()):
            end = min(end + shift, rows) if shift and expert + 1 < len(ends) else end
            left, right = x_of(x[begin:end].float()), weight[expert].float()
            if not len(left):
                continue
            if weight_scale is not None:
                tall = weight_scale[expert].repeat_interleave(block_rows, dim=0)[:columns]
                at = place.clamp(max=tall.shape[1] - 1)
                if by_block:
                    total = torch.zeros(end - begin, columns)
                    for piece in range(tall.shape[1]):
                        inside = slice(piece * block_columns, (piece + 1) * block_columns)
                        part = by_block(left[:, inside], right[:, inside]) * tall[:, piece]
                        total = total + (part if x_scale is None else part * x_scale[begin:end, piece, None])
                    out[begin:end] = last(total, dtype)
                    begin = end
                    continue
                right = right * tall[:, at]
                if x_scale is not None:
                    left = left * x_scale[begin:end][:, at]
                if rounds_weight:
                    left, right = rounded(left, dtype), rounded(right, dtype)
            out[begin:end] = last(product(left[:, :kept], right[:, :kept]), dtype)
            begin = end
        return (out,)

    return run


def _splits(dtype: torch.dtype | None, count: int) -> Product:
    """Parts of the inner dimension, whose sums are added in a narrower dtype."""

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        size = max(1, -(-left.shape[1] // count))
        total = left.new_zeros(left.shape[0], right.shape[0])
        for at in range(0, left.shape[1], size):
            part = left[:, at : at + size] @ right[:, at : at + size].T
            total = rounded(total + rounded(part, dtype), dtype) if dtype else total + part
        return total

    return product


def _tensor_core(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """FP8 products as Hopper's tensor cores add them: 32 at a time, cut to 13 bits below the largest (DeepSeek-V3's
    report, 3.5.2: some 14 bits are kept)."""
    total = left.new_zeros(left.shape[0], right.shape[0])
    for at in range(0, left.shape[1], 32):
        terms = left[:, None, at : at + 32] * right[None, :, at : at + 32]
        most = torch.maximum(terms.abs().amax(dim=-1), total.abs())
        step = torch.exp2(torch.floor(torch.log2(most.clamp(min=1e-30))) - 13)
        whole = torch.trunc(terms / step[..., None]).sum(dim=-1) + torch.trunc(total / step)
        total = whole * step
    return total


def _tf32(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return arithmetic.coarse(left, 10) @ arithmetic.coarse(right, 10).T


def _narrow(dtype: torch.dtype) -> Product:
    return lambda left, right: rounded(left, dtype) @ rounded(right, dtype).T


def _three_bfloat16(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Float32 as two bfloat16 numbers each, without the product of the lesser (torch's medium precision)."""
    high, other = rounded(left, torch.bfloat16), rounded(right, torch.bfloat16)
    low, least = rounded(left - high, torch.bfloat16), rounded(right - other, torch.bfloat16)
    return high @ other.T + low @ other.T + high @ least.T


def _tile_sums(dtype: torch.dtype, count: int) -> Product:
    """A running sum in a narrower dtype over tiles."""

    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        total = left.new_zeros(left.shape[0], right.shape[0])
        for at in range(0, left.shape[1], count):
            total = rounded(total + left[:, at : at + count] @ right[:, at : at + count].T, dtype)
        return total

    return product


def _tiles(count: int, splits: int = 1) -> Product:
    return partial(arithmetic.matmul_tiles, count=count, splits=splits)


VARIANTS = Variants(
    honest={
        "a running sum": (grouped(arithmetic.matmul_running), ALL),
        "tiles of 32": (grouped(_tiles(32)), ALL),
        "tiles of 128": (grouped(_tiles(128)), ALL),
        "tiles of 64 in 4 splits": (grouped(_tiles(64, 4)), ALL),
        "scales after each block": (grouped(by_block=lambda left, right: left @ right.T), ALL),
        "scales after each block, a running sum": (grouped(by_block=arithmetic.matmul_running), ALL),
        "in float64": (grouped(lambda left, right: (left.double() @ right.double().T).float()), ALL),
        "FP8 tensor cores": (grouped(by_block=_tensor_core), NARROW),
        "dequantised to the result's dtype, as torch's grouped product needs it": (grouped(rounds_weight=True), NARROW),
        "2 splits added in the result's dtype, as torch lets cuBLAS": (
            lambda *args: grouped(_splits(args[-1], 2))(*args),
            NARROW,
        ),
    },
    wrong={
        "TF32": (grouped(_tf32), WIDE),
        "bfloat16": (grouped(_narrow(torch.bfloat16)), ("float32", "float16")),
        "three products of bfloat16": (grouped(_three_bfloat16), WIDE),
        "FP8 tensor cores": (grouped(by_block=_tensor_core), WIDE),
        "sum over tiles of 64 in the result's dtype": (
            lambda *args: grouped(_tile_sums(args[-1], 64))(*args),
            NARROW,
        ),
        "8 splits added in the result's dtype": (lambda *args: grouped(_splits(args[-1], 8))(*args), NARROW),
        "cut toward zero": (grouped(last=arithmetic.cut), NARROW),
        "blocks of scales twice as wide": (grouped(block=2), ALL),
        "blocks of scales half as wide": (grouped(block=0.5), ALL),
        "the last of the inner dimension left": (grouped(drops=1), ALL),
        "experts end one row later": (grouped(shift=1), ALL),
    },
)
