"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    block_rows: int,
    block_columns: int,
    dtype: torch.dtype,
) -> tuple[torch.Tensor]:
    """x (rows, inner) times the weights (experts, columns, inner), transposed, as `dtype`, (rows, columns).

    Expert e has the rows from ends[e - 1] to ends[e], int32, as torch._grouped_mm counts them; rows past the last end
    give zeros. An FP8 weight (float8_e4m3fn) has a float32 scale for each block of `block_rows` by `block_columns`,
    (experts, blocks down, blocks across). x is of `dtype`, or, with an FP8 weight, FP8 itself with a float32 scale for
    each `block_columns` numbers of a row. With any argument in float64 the result is in float64.
    """
    floating = [tensor.dtype for tensor in (x, weight, x_scale, weight_scale) if tensor is not None]
    wide = torch.float64 if torch.float64 in floating else torch.float32
    result = torch.float64 if wide == torch.float64 else dtype
    rows, columns, inner = x.shape[0], weight.shape[1], x.shape[1]
    full = x.to(wide)
    if x_scale is not None:
        full = full * x_scale.to(wide).repeat_interleave(block_columns, dim=1)[:, :inner]
    out = torch.zeros(rows, columns, dtype=result, device=x.device)
    if x.is_meta or isinstance(ends, FakeTensor):  # whose numbers nobody knows
        return (out,)
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        matrix = weight[expert].to(wide)
        if weight_scale is not None:
            spread = weight_scale[expert].to(wide).repeat_interleave(block_rows, dim=0)[:columns]
            matrix = matrix * spread.repeat_interleave(block_columns, dim=1)[:, :inner]
        out[begin:end] = (full[begin:end] @ matrix.T).to(result)
        begin = end
    return (out,)


def baseline(
    x: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    block_rows: int,
    block_columns: int,
    dtype: torch.dtype,
) -> tuple[torch.Tensor]:
    """torch's own grouped product, of the weights in the dtype of the result; FP8 is dequantised before."""

    def dequantised(codes: torch.Tensor, scale: torch.Tensor, rows: int) -> torch.Tensor:
        spread = scale.repeat_interleave(rows, dim=-2).repeat_interleave(block_columns, dim=-1)
        return (codes.float() * spread[..., : codes.shape[-2], : codes.shape[-1]]).to(dtype)

    x = x if x_scale is None else dequantised(x, x_scale, 1)
    weight = weight if weight_scale is None else dequantised(weight, weight_scale, block_rows)
    return (torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends, out_dtype=dtype),)
