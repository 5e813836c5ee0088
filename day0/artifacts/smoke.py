"""SmokeReport: whether the served model answers as the reference does."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from day0.artifacts.base import Frozen
from day0.artifacts.service import OfService


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
    path: Literal["prefill", "decode"] = "prefill"
    """`prefill`: the engine scored given ids; `decode`: the engine's own greedy tokens, scored as it generated them."""
    tokens: int
    error: Distribution
    """Engine against the float32 reference."""
    reference_error: Distribution
    """The reference at the working precision against itself at float32, on the same tokens."""
    top1_agreement: float | None
    """Share of positions with the reference's most likely token, among those where that token is no near tie."""
    ratio: float | None
    """mean |engine - fp32| / mean |reference at bf16 - fp32|: about 1 is rounding, far above 1 a fault."""
    median_ratio: float | None
    """The same of medians: a few wild positions do not move it."""


class ExactParity(Frozen):
    """Teacher-forced comparison of the same files in the same engine at float32, where rounding hides nothing."""

    error: Distribution
    """Engine at float32 against the float32 reference, over all prompts."""
    worst: dict[str, float]
    """The largest error of each prompt."""


class SmokeReport(OfService):
    kind: ClassVar[str] = "smoke"

    reference: dict[str, Any]
    """Library, version, dtypes, model folder's digest."""
    engine_dtype: str
    prompts: tuple[PromptParity, ...]
    error: Distribution | None
    """Over the prefill path of all prompts."""
    reference_error: Distribution | None
    """The reference at bf16 against itself at float32."""
    top1_agreement: float | None
    ratio: float | None
    median_ratio: float | None = None
    exact: ExactParity | None = None
    """None where the engine was not started at float32; the check `parity.float32_mean_error` says why."""
    generations: tuple[dict[str, Any], ...] = ()
    """What was generated, for people to read: prompt, text, finish reason, repetition measures."""
    thresholds: dict[str, Any]

    @property
    def summary(self) -> str:
        """The three-way ratio, the agreement, and the error where the engine served at float32."""
        if self.error is None or self.ratio is None or self.top1_agreement is None:
            return super().summary
        text = (
            f"error {self.ratio:.2f} times the reference's own at {self.engine_dtype}, top-1 agreement "
            f"{self.top1_agreement:.1%} over {self.error.count:,} positions"
        )
        text += f"; {self.exact.error.mean:.1e} nats at float32" if self.exact else ""
        return self.with_kernels(text)
