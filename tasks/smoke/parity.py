"""Statistics of log-probability parity: engine against reference, three ways.

Two correct computations at bfloat16 differ from each other as much as each differs from float32, so a difference
alone says nothing. The measure is a ratio of errors: err(engine, float32) / err(reference at bf16, float32),
on the same tokens. About 1 is rounding; a fault in the weights or the arithmetic adds to the numerator alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from day0.artifacts.smoke import Distribution, PromptParity


@dataclass(frozen=True)
class Compared:
    """One sequence's errors, position by position: all lists are of one length."""

    prompt: str
    path: Literal["prefill", "decode"]
    engine: list[float]
    """|engine - reference at float32|, in nats."""
    reference: list[float]
    """|reference at the working precision - reference at float32|, in nats."""
    agrees: list[bool]
    """The engine's most likely token is the reference's, at positions where the reference's lead is no near tie."""


def compare(
    prompt: str,
    path: Literal["prefill", "decode"],
    engine: Sequence[float],
    float32: Sequence[float],
    working: Sequence[float],
    engine_top1: Sequence[int],
    top1: Sequence[int],
    lead: Sequence[float],
    near_tie: float,
) -> Compared:
    """Errors of one sequence. All arguments up to `lead` hold one value per position.

    Raises:
        ValueError: lengths differ: the engine did not score what it was given.
    """
    triples = list(zip(engine, float32, working, strict=True))
    tops = zip(engine_top1, top1, lead, strict=True)
    return Compared(
        prompt,
        path,
        engine=[abs(e - f) for e, f, _ in triples],
        reference=[abs(w - f) for _, f, w in triples],
        agrees=[mine == theirs for mine, theirs, ahead in tops if ahead > near_tie],
    )


def ratio(engine: Sequence[float], reference: Sequence[float]) -> float | None:
    """mean(engine) / mean(reference); None if nothing was measured or there is no rounding to compare with."""
    return _quotient(engine, reference, statistics.fmean)


def median_ratio(engine: Sequence[float], reference: Sequence[float]) -> float | None:
    """The same of medians."""
    return _quotient(engine, reference, statistics.median)


def _quotient(engine: Sequence[float], reference: Sequence[float], middle: object) -> float | None:
    assert callable(middle)
    if not engine or not reference:
        return None
    above, below = float(middle(engine)), float(middle(reference))
    if below == 0:
        return 1.0 if above == 0 else None
    return above / below


def distribution(errors: Sequence[float]) -> Distribution:
    """Mean, quantiles (nearest rank) and maximum of at least one error."""
    ordered = sorted(errors)

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Distribution(
        count=len(ordered),
        mean=statistics.fmean(ordered),
        p50=statistics.median(ordered),
        p90=quantile(0.90),
        p99=quantile(0.99),
        max=ordered[-1],
    )


def share(values: Sequence[bool]) -> float | None:
    """The share of true values; None of nothing."""
    return sum(values) / len(values) if values else None


def summarise(compared: Compared) -> PromptParity:
    """One sequence's line in the report."""
    return PromptParity(
        prompt=compared.prompt,
        path=compared.path,
        tokens=len(compared.engine),
        error=distribution(compared.engine),
        reference_error=distribution(compared.reference),
        top1_agreement=share(compared.agrees),
        ratio=ratio(compared.engine, compared.reference),
        median_ratio=median_ratio(compared.engine, compared.reference),
    )


@dataclass(frozen=True)
class Pooled:
    """Every position of several sequences taken together."""

    engine: list[float]
    reference: list[float]
    agrees: list[bool]

    @classmethod
    def of(cls, parts: Sequence[Compared]) -> Pooled:
        return cls(
            [x for part in parts for x in part.engine],
            [x for part in parts for x in part.reference],
            [x for part in parts for x in part.agrees],
        )
