"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

from typing import Any

import torch


def reference(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scoring: str,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, float32, and experts, int32, both (tokens, k), for logits (tokens, experts), best first.

    `scoring` is `softmax`, `sigmoid` or `sqrtsoftplus` (the root of log(1 + e^x), DeepSeek-V4). Experts are chosen
    by score + bias (experts,), float32, and weighted by the score alone. With several groups, each of experts /
    groups neighbours, only those of the `groups_kept` best groups are chosen from; a group counts as its best
    expert or, with a bias, the sum of its best two (DeepSeek-V3). Weights are divided by their sum where
    renormalised, and multiplied by `scale`. Of equal scores the lower index is better; a NaN is the best of all, as
    torch's sort has it.
    """
    tokens, experts = logits.shape
    scores = _scores(logits, scoring)
    chosen_by = scores if bias is None else scores + bias.to(scores.dtype)
    if groups > 1:
        members = chosen_by.view(tokens, groups, experts // groups)
        best = members.sort(dim=-1, descending=True, stable=True).values
        value = best[..., 0] if bias is None else best[..., :2].sum(dim=-1)
        order = value.sort(dim=-1, descending=True, stable=True).indices[:, :groups_kept]
        dropped = torch.ones_like(value, dtype=torch.bool).scatter(1, order, False)
        out = dropped.repeat_interleave(experts // groups, dim=-1)
    ids = chosen_by.sort(dim=-1, descending=True, stable=True).indices
    if groups > 1:
        # Those of dropped groups come last, and keep their order otherwise, even where a kept one scores -infinity.
        ids = ids.gather(1, out.gather(1, ids).sort(dim=-1, stable=True).indices)
    ids = ids[:, :k]
    weights = scores.gather(1, ids)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    weights = weights * scale
    return weights if logits.dtype == torch.float64 else weights.to(torch.float32), ids.to(torch.int32)


def comparable(args: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The weights; what each chosen expert is chosen by; and, for each token, how many different experts there are.

    Experts of nearly equal scores may come in either order, and then so do their weights, where there is a bias: the
    weights are sorted.
    """
    logits, bias, _, scoring, *_ = args
    weights, ids = outputs
    scores = _scores(logits, scoring)
    chosen_by = (scores if bias is None else scores + bias).gather(1, ids.long())
    ordered = ids.sort(dim=-1).values
    different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(dim=-1)
    return weights.to(logits.dtype).sort(dim=-1).values, chosen_by, different.to(logits.dtype)


def _scores(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scoring == "softmax":
        return wide.softmax(dim=-1)
    if scoring == "sigmoid":
        return wide.sigmoid()
    if scoring == "sqrtsoftplus":
        return torch.nn.functional.softplus(wide).sqrt()
    raise ValueError(f"scoring must be softmax, sigmoid or sqrtsoftplus, got {scoring!r}")
