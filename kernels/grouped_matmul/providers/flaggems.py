"""By FlagGems' group_mm."""

from __future__ import annotations

import flag_gems
import torch


def declines(
    x: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    block_rows: int,
    block_columns: int,
    dtype: torch.dtype,
) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    if x_scale is not None or weight_scale is not None:
        return "no FP8"
    if x.dtype == torch.float32:
        return "no float32: it multiplies in TF32"
    return "" if x.shape[0] and x.dtype == weight.dtype == dtype else "rows of the result's dtype only"


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    block_rows: int,
    block_columns: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See reference.py. It does not write rows past the last end, which are zeros here."""
    out = flag_gems.group_mm(x.contiguous(), weight.transpose(1, 2), ends.contiguous())
    past = torch.arange(x.shape[0], device=x.device) >= ends[-1]
    return out.masked_fill_(past[:, None], 0)
