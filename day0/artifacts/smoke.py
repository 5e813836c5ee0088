"""SmokeReport: whether the served model answers as the reference does."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class Distribution(Frozen):
    """Of absolute log-probability differences, in nats."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class PromptParity(Frozen):
    """Teacher-forced comparison on one prompt's token ids."""

    prompt: str
    tokens: int
    error: Distribution
    """Engine against the float32 reference."""
    top1_agreement: float
    ratio: float
    """mean |engine - fp32| / mean |reference at bf16 - fp32|: about 1 is rounding, far above 1 a fault."""


class SmokeReport(Artifact):
    kind: ClassVar[str] = "smoke"

    reference: dict[str, Any]
    """Library, version, dtypes, model folder's digest."""
    engine_dtype: str
    prompts: tuple[PromptParity, ...]
    error: Distribution | None
    reference_error: Distribution | None
    """The reference at bf16 against itself at float32."""
    top1_agreement: float | None
    ratio: float | None
    generations: tuple[dict[str, Any], ...] = ()
    """What was generated, for people to read: prompt, text, finish reason, repetition measures."""
    thresholds: dict[str, Any]
