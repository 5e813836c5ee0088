"""By FlagGems' apply_rotary_pos_emb, which turns whole heads."""

from __future__ import annotations

import flag_gems
import torch


def declines(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    return ""


def run(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.py. Of heads that turn in part, the part is given to FlagGems and joined with the rest."""
    rotary = cos_sin.shape[-1]
    cos, sin = (cos_sin if cos_sin.stride(-1) == 1 else cos_sin.contiguous()).chunk(2, dim=-1)
    turned = flag_gems.apply_rotary_pos_emb(
        query[..., :rotary], key[..., :rotary], cos, sin, position_ids=positions, rotary_interleaved=interleaved
    )
    if rotary < query.shape[-1]:
        turned = [torch.cat((part, heads[..., rotary:]), -1) for part, heads in zip(turned, (query, key), strict=True)]
    return turned[0].contiguous(), turned[1].contiguous()
