"""By FlagGems' topk_softmax, and its grouped_topk for routers that have a bias."""

from __future__ import annotations

import flag_gems
import torch

_MOST_CHOSEN, _MOST_EXPERTS, _MOST_GROUPS = 32, 1024, 32


def declines(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scoring: str,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    scale: float,
) -> str:
    """Why FlagGems has nothing for this call; nothing: it has."""
    experts = logits.shape[1]
    if k > _MOST_CHOSEN or experts > _MOST_EXPERTS or groups > _MOST_GROUPS:
        return f"at most {_MOST_CHOSEN} of {_MOST_EXPERTS} experts in {_MOST_GROUPS} groups"
    if bias is None:
        return "" if scoring == "softmax" and groups == 1 else "without a bias softmax without groups only"
    if scoring != "sigmoid":
        return "with a bias sigmoid only"
    if k & (k - 1):
        return "with a bias powers of two of experts only"
    return "" if experts // groups > 1 else "groups of two experts or more only"


def run(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scoring: str,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See reference.py. grouped_topk computes in the dtype that it is given, so it is given float32."""
    if bias is not None:
        wide = logits.float().contiguous()
        weights, ids = flag_gems.grouped_topk(wide, groups, groups_kept, k, renormalise, scale, bias.contiguous(), 1)
        return weights, ids
    weights = logits.new_empty((logits.shape[0], k), dtype=torch.float32)
    ids, rows = (torch.empty_like(weights, dtype=torch.int32) for _ in range(2))
    flag_gems.topk_softmax(weights, ids, rows, logits.contiguous(), renormalise)
    return weights if scale == 1 else weights * scale, ids
