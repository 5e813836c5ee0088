"""Which share of a tensor the rank holds that holds most."""

from __future__ import annotations

import math

from day0.architecture.bound import BoundRule
from day0.architecture.parallel import Sizes


def rank_share(rule: BoundRule, sizes: Sizes) -> float:
    """The share of all tensors of one rule (in a layer) that the rank with most has.

    By the split that the rule has; what does not divide is counted as if the first rank took what is over. Cuts to the
    byte, and what an engine refuses, are `day0.architecture.cuts`' business.
    """
    routed = rule.rule.kind == "routed_expert"
    ranks = sizes.expert_tp if routed else sizes.tp
    share = _divided(rule, ranks)
    if routed:
        experts = _experts(rule)
        share *= math.ceil(experts / sizes.ep) / experts
    return share


def _divided(rule: BoundRule, ranks: int) -> float:
    if rule.dim is None or ranks == 1 or not rule.segments:
        return 1.0
    length = sum(segment.size for segment in rule.segments)
    held = sum(segment.size // segment.units * math.ceil(segment.units / ranks) for segment in rule.segments)
    return held / length


def _experts(rule: BoundRule) -> int:
    if rule.rule.experts is not None:
        return rule.shape[rule.rule.experts]
    return len(rule.numbers.get("expert") or (0,))
