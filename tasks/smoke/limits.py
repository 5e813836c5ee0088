"""The checks of parity: one number against one threshold each. An absent number or threshold: inconclusive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from day0.artifacts.smoke import Distribution
from day0.verdict import Check, Verdict
from tasks.smoke.parity import Compared, Pooled, distribution, median_ratio, ratio, share, summarise
from tasks.smoke.settings import Thresholds

#: The check of an engine that computes in float32.
FLOAT32 = "parity.float32_mean_error"


def parity(
    prefill: Sequence[Compared],
    decode: Sequence[Compared],
    greedy: Sequence[bool],
    limits: Thresholds,
    clipped: list[str],
    engine_dtype: str = "unknown",
) -> list[Check]:
    """Engine against reference: on given ids (prefill), and on the engine's own greedy tokens (decode).

    An engine that computes in float32 has no rounding that could hide a fault, and is held to a limit of its own.
    """
    whole, generated = Pooled.of(prefill), Pooled.of(decode)
    spread = distribution(whole.engine) if whole.engine else None
    own = distribution(whole.reference) if whole.reference else None
    by_prompt = {c.prompt: summarise(c).ratio for c in prefill}
    known = {name: value for name, value in by_prompt.items() if value is not None}
    worst = max(known, key=known.__getitem__, default=None)
    count = float(len(whole.engine)) if prefill else None
    worst_error = {c.prompt: max(c.engine) for c in prefill if c.engine}
    return [
        *([float32(spread, limits, worst_error)] if engine_dtype == "float32" else []),
        _limit("positions", count, "min", limits.min_positions, "compared positions", {"clipped": clipped}),
        _limit("ratio", ratio(whole.engine, whole.reference), "max", limits.ratio, "error ratio (means)"),
        _limit("median_ratio", median_ratio(whole.engine, whole.reference), "max", limits.median_ratio,
               "error ratio (medians)"),
        _limit(
            "prompt_ratio",
            known[worst] if worst is not None else None,
            "max",
            limits.prompt_ratio,
            f"worst error ratio of a prompt ({worst})",
            {"by_prompt": by_prompt},
        ),
        _limit("mean_error", spread.mean if spread else None, "max", limits.mean_error, "mean error in nats",
               {"reference": own.mean if own else None}),
        _limit("p99_error", spread.p99 if spread else None, "max", limits.p99_error, "99th percentile error in nats",
               {"reference": own.p99 if own else None}),
        _limit("top1_agreement", share(whole.agrees), "min", limits.top1_agreement, "top-1 agreement beyond near ties",
               {"positions": len(whole.agrees), "near_tie": limits.near_tie}),
        _limit("decode_ratio", ratio(generated.engine, generated.reference), "max", limits.decode_ratio,
               "error ratio on generated tokens", {"positions": len(generated.engine)}),
        _limit("greedy_agreement", share(greedy), "min", limits.greedy_agreement,
               "greedy tokens that the reference would choose too", {"positions": len(greedy)}),
    ]  # fmt: skip


def float32(spread: Distribution | None, limits: Thresholds, worst: Mapping[str, float]) -> Check:
    """The mean error where engine and reference both compute in float32; `worst` is the largest by prompt."""
    what = "mean error in nats, both at float32"
    mean = spread.mean if spread else None
    return _limit(
        FLOAT32.removeprefix("parity."),
        mean,
        "max",
        limits.float32_mean_error,
        what,
        {"p99": spread.p99, "max": spread.max, "positions": spread.count, "worst": dict(worst)} if spread else None,
    )


def _limit(
    name: str,
    value: float | None,
    side: Literal["max", "min"],
    threshold: float | None,
    what: str,
    more: dict[str, Any] | None = None,
) -> Check:
    """One number against one threshold."""
    measured = {"value": value, "threshold": threshold, **(more or {})}
    name = f"parity.{name}"
    if value is None:
        reason = f"{what}: could not be measured"
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, reason=reason, measured=measured)
    if threshold is None:
        reason = f"{what}: {value:.4g}, but no threshold is configured"
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, reason=reason, measured=measured)
    good = value <= threshold if side == "max" else value >= threshold
    relation = {"max": ("at most", "more than"), "min": ("at least", "less than")}[side][not good]
    reason = f"{what}: {value:.4g}, {relation} {threshold:g}"
    return Check(name=name, verdict=Verdict.PASS if good else Verdict.FAIL, reason=reason, measured=measured)
