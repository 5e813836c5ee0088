"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

import torch


def reference(
    codes: torch.Tensor, scales: torch.Tensor, block_rows: int, block_columns: int, dtype: torch.dtype
) -> tuple[torch.Tensor]:
    """codes (…, rows, columns), float8_e4m3fn, times scales (…, blocks down, blocks across), float32, as `dtype`.

    Blocks at the lower and right edges may be smaller. With scales in float64 the result is in float64.
    """
    wide = torch.promote_types(scales.dtype, torch.float32)
    rows, columns = codes.shape[-2:]
    spread = scales.to(wide).repeat_interleave(block_rows, dim=-2).repeat_interleave(block_columns, dim=-1)
    product = codes.to(wide) * spread[..., :rows, :columns]
    return (product if wide == torch.float64 else product.to(dtype),)
