"""FP8 block quantise."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, Compute, Outputs, Variants, rounded

LARGEST, SMALLEST = 448.0, 1e-10
Step = Callable[[torch.Tensor], torch.Tensor]


def _up(scales: torch.Tensor) -> torch.Tensor:
    return torch.exp2(torch.ceil(torch.log2(scales)))


def _up_by_bits(scales: torch.Tensor) -> torch.Tensor:
    return ((scales.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def quantised(
    scale: Step = lambda most: most / LARGEST,
    up: Step = _up,
    divide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.div,
    to_code: Step = lambda quotient: quotient.to(torch.float8_e4m3fn),
    kept: Step = lambda scales: scales,
    rows: int = 1,
    columns: int = 1,
    drops: int = 0,
) -> Compute:
    """The operator with one way of each of its steps.

    Args:
        kept: what becomes of the scales after the codes are made by them.
        rows, columns: neighbouring blocks that have one scale.
        drops: columns that the largest of a block is not looked for in.
    """

    def run(x: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool) -> Outputs:
        wide = x.float()
        height, width = x.shape
        down, across = -(-height // block_rows), -(-width // block_columns)
        padded = wide.new_zeros(down * block_rows, across * block_columns)
        padded[:height, : width - drops] = wide[:, : width - drops]
        most = padded.view(down, block_rows, across, block_columns).abs().amax(dim=(1, 3))
        for dim, count in ((0, rows), (1, columns)):
            if count > 1:
                first = torch.arange(most.shape[dim]) // count * count
                second = (first + 1).clamp(max=max(0, most.shape[dim] - 1))
                most = torch.maximum(most.index_select(dim, first), most.index_select(dim, second))
        scales = scale(most.clamp(min=SMALLEST))
        scales = up(scales) if power_of_two else scales
        spread = scales.repeat_interleave(block_rows, dim=0).repeat_interleave(block_columns, dim=1)[:height, :width]
        return to_code(divide(wide, spread).clamp(-LARGEST, LARGEST)), kept(scales)

    return run


def _code_by_way_of(dtype: torch.dtype) -> Step:
    return lambda quotient: quotient.to(dtype).to(torch.float8_e4m3fn)


def _half_away(quotient: torch.Tensor) -> torch.Tensor:
    """Ties away from zero, as adding half a step and cutting has it."""
    even = quotient.to(torch.float8_e4m3fn)
    nudged = (quotient.double() * (1 + 2.0**-40)).to(torch.float8_e4m3fn)
    return torch.where(even.isnan(), even.float(), nudged.float()).to(torch.float8_e4m3fn)


VARIANTS = Variants(
    honest={
        "by the reciprocal": (quantised(divide=lambda x, by: x * (1 / by)), ALL),
        "by an approximate reciprocal": (quantised(divide=lambda x, by: x * arithmetic.reciprocal_approx(by)), ALL),
        "by 448 over the largest": (quantised(divide=lambda x, by: x * (LARGEST / (by * LARGEST))), ALL),
        "scale by 1 / 448": (quantised(scale=lambda most: most * (1 / LARGEST)), ALL),
        "power of two by bits": (quantised(up=_up_by_bits), ALL),
        "in float64": (quantised(divide=lambda x, by: x.double() / by.double()), ALL),
        "ties away from zero": (quantised(to_code=_half_away), ALL),
    },
    wrong={
        "codes cut toward zero": (quantised(to_code=lambda q: arithmetic.cut(q, torch.float8_e4m3fn)), ALL),
        "quotients in bfloat16": (quantised(to_code=_code_by_way_of(torch.bfloat16)), ALL),
        "quotients in float16": (quantised(to_code=_code_by_way_of(torch.float16)), ALL),
        "scales in bfloat16": (quantised(scale=lambda most: rounded(most / LARGEST, torch.bfloat16)), ALL),
        "scales in TF32": (quantised(scale=lambda most: arithmetic.coarse(most / LARGEST, 10)), ALL),
        "scales in float16, kept": (quantised(kept=lambda s: rounded(s * 64, torch.float16) / 64), ALL),
        "scales that are others than codes were made by": (quantised(kept=lambda s: s * (1 + 2.0**-10)), ALL),
        "largest 240, as FNUZ has it": (quantised(scale=lambda most: most / 240), ALL),
        "one scale for two blocks across": (quantised(columns=2), ALL),
        "one scale for two blocks down": (quantised(rows=2), ALL),
        "the last column not looked at": (quantised(drops=1), ALL),
        "power of two to the nearest": (quantised(up=lambda s: torch.exp2(torch.round(torch.log2(s)))), ALL),
    },
)
