"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

from typing import Any

import torch

#: The largest float8_e4m3fn, and what a block of zeros is taken to hold, so that its scale is not zero.
LARGEST, SMALLEST = 448.0, 1e-10


def reference(
    x: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, as x, (rows, columns), in float8_e4m3fn, and scales, float32, one for each block; x is codes * scales.

    Blocks at the lower and right edges may be smaller: (1, 128) for activations, (128, 128) for weights. A scale is the
    block's largest magnitude / 448, or, as a power of two (UE8M0), the next one that is not smaller. Codes are within
    ±448; a block with a NaN has a NaN for its scale and for each code.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rows, columns = x.shape
    down, across = -(-rows // block_rows), -(-columns // block_columns)
    padded = wide.new_zeros(down * block_rows, across * block_columns)
    padded[:rows, :columns] = wide
    blocks = padded.view(down, block_rows, across, block_columns).abs()
    scales = blocks.amax(dim=(1, 3)).clamp(min=SMALLEST) / LARGEST
    if power_of_two:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    codes = (wide / _spread(scales, block_rows, block_columns)[:rows, :columns]).clamp(-LARGEST, LARGEST)
    return codes.to(torch.float8_e4m3fn), scales


def comparable(args: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """How far codes * scales is from x, in scales, which is the same on both sides of a tie; and log2 of the scales."""
    x, block_rows, block_columns, _ = args
    codes, scales = outputs
    spread = _spread(scales.to(x.dtype), block_rows, block_columns)[: x.shape[0], : x.shape[1]]
    return (codes.to(x.dtype) - x / spread).abs(), scales.log2()


def _spread(scales: torch.Tensor, block_rows: int, block_columns: int) -> torch.Tensor:
    return scales.repeat_interleave(block_rows, dim=0).repeat_interleave(block_columns, dim=1)
