"""Router top-k."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, Compute, Outputs, Variants, rounded

Score = Callable[[torch.Tensor], torch.Tensor]


def _softmax(exp: Score, divide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], shift: bool = True) -> Score:
    def scores(wide: torch.Tensor) -> torch.Tensor:
        powers = exp(wide - wide.amax(dim=-1, keepdim=True) if shift else wide)
        return divide(powers, arithmetic.running(powers).unsqueeze(-1))

    return scores


def _by_reciprocal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left * arithmetic.reciprocal_approx(right)


def _sigmoid_approx(wide: torch.Tensor) -> torch.Tensor:
    return arithmetic.reciprocal_approx(1 + arithmetic.exp_approx(-wide))


def _root_of_softplus(wide: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.exp(wide)).sqrt()


def _root_of_log(wide: torch.Tensor) -> torch.Tensor:
    tail = torch.log1p(arithmetic.exp_approx(-wide.abs()))
    return (wide.clamp(min=0) + arithmetic.scattered(tail, 22)).sqrt()


def _root_without_small_digits(wide: torch.Tensor) -> torch.Tensor:
    """1 and a small exponential are 1 in float32."""
    return (wide.clamp(min=0) + torch.log(1 + torch.exp(-wide.abs()))).sqrt()


def routed(
    softmax: Score = lambda wide: wide.softmax(dim=-1),
    sigmoid: Score = torch.sigmoid,
    root: Score = lambda wide: torch.nn.functional.softplus(wide).sqrt(),
    total: Score = lambda weights: weights.sum(dim=-1),
    scored: Score = lambda scores: scores,
    biased: Score = lambda bias: bias,
    members: int = 2,
    weighted_by_bias: bool = False,
    normalise: bool = True,
    scale_first: bool = False,
    drops: int = 0,
    weights_of: Score = lambda weights: weights,
) -> Compute:
    """The operator with one way of each of its steps."""

    def run(
        logits: torch.Tensor,
        bias: torch.Tensor | None,
        k: int,
        scoring: str,
        groups: int,
        groups_kept: int,
        renormalise: bool,
        scale: float,
    ) -> Outputs:
        tokens, experts = logits.shape
        by = {"softmax": softmax, "sigmoid": sigmoid, "sqrtsoftplus": root}[scoring]
        scores = scored(by(logits.float()))
        chosen_by = scores if bias is None else scores + biased(bias)
        if drops and experts - k >= drops:
            chosen_by = torch.cat((chosen_by[:, :-drops], torch.full((tokens, drops), -100.0)), dim=-1)
        if groups > 1:
            parts = chosen_by.view(tokens, groups, experts // groups)
            best = parts.topk(min(members if bias is not None else 1, parts.shape[-1]), dim=-1).values.sum(dim=-1)
            kept = best.sort(dim=-1, descending=True, stable=True).indices[:, :groups_kept]
            out = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
            chosen_by = chosen_by.masked_fill(out.repeat_interleave(experts // groups, dim=-1), -torch.inf)
        ids = chosen_by.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        weights = (chosen_by if weighted_by_bias else scores).gather(1, ids)
        if scale_first:
            weights = weights * scale
        if renormalise and normalise:
            divisor = total(weights).unsqueeze(-1)
            weights = weights / (divisor / scale if scale_first else divisor)
        return weights_of(weights if scale_first else weights * scale), ids.to(torch.int32)

    return run


def _softmax_of_chosen(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scoring: str,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    scale: float,
) -> Outputs:
    """The softmax over the chosen alone, where that is the same: renormalised, and nothing but logits choose."""
    if not (scoring == "softmax" and renormalise and groups == 1 and bias is None):
        return routed()(logits, bias, k, scoring, groups, groups_kept, renormalise, scale)
    best, ids = logits.float().sort(dim=-1, descending=True, stable=True)
    return best[:, :k].softmax(dim=-1) * scale, ids[:, :k].to(torch.int32)


def _in_float64(logits: torch.Tensor, bias: torch.Tensor | None, *rest: object) -> Outputs:
    inner = routed(
        lambda x: x.double().softmax(dim=-1).float(),
        lambda x: x.double().sigmoid().float(),
        lambda x: torch.nn.functional.softplus(x.double()).sqrt().float(),
    )
    return inner(logits, bias, *rest)


def _all_scores(to: Score) -> Compute:
    return routed(scored=to)


VARIANTS = Variants(
    honest={
        "exponentials, a running sum": (
            routed(_softmax(torch.exp, torch.div), lambda x: 1 / (1 + torch.exp(-x)), _root_of_softplus),
            ALL,
        ),
        "approximate exponential and reciprocal": (
            routed(_softmax(arithmetic.exp_approx, _by_reciprocal), _sigmoid_approx, _root_of_log, arithmetic.running),
            ALL,
        ),
        "sigmoid by tanh": (routed(sigmoid=lambda x: 0.5 * torch.tanh(0.5 * x) + 0.5), ALL),
        "softmax of the chosen": (_softmax_of_chosen, ALL),
        "scaled before it is renormalised": (routed(scale_first=True), ALL),
        "in float64": (_in_float64, ALL),
    },
    wrong={
        "exponentials that overflow": (routed(_softmax(torch.exp, torch.div, shift=False)), ALL),
        "scores in bfloat16": (_all_scores(lambda s: rounded(s, torch.bfloat16)), ALL),
        "scores in float16": (_all_scores(lambda s: rounded(s, torch.float16)), ALL),
        "scores in TF32": (_all_scores(lambda s: arithmetic.coarse(s, 10)), ALL),
        "weights in bfloat16": (routed(weights_of=lambda w: rounded(w, torch.bfloat16)), ALL),
        "weights in float16": (routed(weights_of=lambda w: rounded(w, torch.float16)), ALL),
        "a sum in bfloat16": (routed(total=lambda w: arithmetic.narrow_running(w, torch.bfloat16)), ALL),
        "bias in bfloat16": (routed(biased=lambda bias: rounded(bias, torch.bfloat16)), ALL),
        "approximate tanh": (routed(sigmoid=lambda x: 0.5 * arithmetic.tanh_approx(0.5 * x) + 0.5), ALL),
        "softplus without the digits of small scores": (routed(root=_root_without_small_digits), ALL),
        "weights with the bias": (routed(weighted_by_bias=True), ALL),
        "groups by their best expert": (routed(members=1), ALL),
        "not renormalised": (routed(normalise=False), ALL),
        "the last expert never": (routed(drops=1), ALL),
    },
)
