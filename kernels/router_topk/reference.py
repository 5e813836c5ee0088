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
    scores = _scores(logits, scoring)
    chosen_by = scores if bias is None else scores + bias.to(scores.dtype)
    ids = chosen_by.sort(dim=-1, descending=True, stable=True).indices
    if groups > 1:
        _, out = _groups(chosen_by, bias, groups, groups_kept)
        # Those of dropped groups come last, and keep their order otherwise, even where a kept one scores -infinity.
        ids = ids.gather(1, out.gather(1, ids).sort(dim=-1, stable=True).indices)
    ids = ids[:, :k]
    weights = scores.gather(1, ids)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    weights = weights * scale
    return weights if logits.dtype == torch.float64 else weights.to(torch.float32), ids.to(torch.int32)


#: Scores, of about 1, that differ by less in float64 may be in another order in float32, however they are computed: its
#: last place is 2^-24, and an exponential and a reciprocal are good to a few of them.
NEAR = 2e-6


def comparable(args: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The weights; what each chosen expert is chosen by; and, for each token, how many different experts there are.

    Experts of nearly equal scores may come in either order, and then so do their weights, where there is a bias: the
    weights are sorted. Where the last that is chosen and the first that is not are so near, either is right, and the
    weights of the token are not compared; where two groups are, neither is what experts are chosen by.
    """
    logits, bias, k, scoring, groups, groups_kept, *_ = args
    weights, ids = outputs
    scores = _scores(logits, scoring)
    every = scores if bias is None else scores + bias
    either_group = torch.zeros_like(every[:, 0], dtype=torch.bool)
    kept = every
    if groups > 1:
        value, out = _groups(every, bias, groups, groups_kept)
        kept = every.masked_fill(out, -torch.inf)
        either_group = _near(value, groups_kept)
    either = either_group | _near(kept, k) if bias is not None else either_group
    weights = weights.masked_fill(either[:, None], 0)
    chosen_by = every.gather(1, ids.long()).masked_fill(either_group[:, None], 0)
    ordered = ids.sort(dim=-1).values
    different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(dim=-1)
    return weights.to(logits.dtype).sort(dim=-1).values, chosen_by, different.to(logits.dtype)


def _groups(
    chosen_by: torch.Tensor, bias: torch.Tensor | None, groups: int, groups_kept: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each group counts as, (tokens, groups), and which experts are of dropped ones, (tokens, experts)."""
    tokens, experts = chosen_by.shape
    members = chosen_by.view(tokens, groups, experts // groups)
    best = members.sort(dim=-1, descending=True, stable=True).values
    value = best[..., 0] if bias is None else best[..., :2].sum(dim=-1)
    order = value.sort(dim=-1, descending=True, stable=True).indices[:, :groups_kept]
    dropped = torch.ones_like(value, dtype=torch.bool).scatter(1, order, False)
    return value, dropped.repeat_interleave(experts // groups, dim=-1)


def _near(values: torch.Tensor, count: int) -> torch.Tensor:
    """Where the `count`-th largest of each row is hardly larger than the next."""
    ordered = values.sort(dim=-1, descending=True).values
    if count >= ordered.shape[-1]:
        return torch.zeros_like(ordered[:, 0], dtype=torch.bool)
    return ordered[:, count - 1] - ordered[:, count] < NEAR


def _scores(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if scoring == "softmax":
        return wide.softmax(dim=-1)
    if scoring == "sigmoid":
        return wide.sigmoid()
    if scoring == "sqrtsoftplus":
        return torch.nn.functional.softplus(wide).sqrt()
    raise ValueError(f"scoring must be softmax, sigmoid or sqrtsoftplus, got {scoring!r}")
