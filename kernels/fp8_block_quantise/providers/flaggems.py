"""By FlagGems' per_token_group_quant_fp8."""

from __future__ import annotations

import flag_gems
import torch

#: What a block of zeros is taken to hold (reference.py).
_SMALLEST = 1e-10


def declines(x: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    if block_rows != 1:
        return "blocks of one row only"
    return "" if x.shape[1] % block_columns == 0 else "rows of whole blocks only"


def run(x: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.py."""
    codes, scales = flag_gems.per_token_group_quant_fp8(
        x.contiguous(), block_columns, eps=_SMALLEST, dtype=torch.float8_e4m3fn, scale_ue8m0=power_of_two
    )
    return codes, scales
