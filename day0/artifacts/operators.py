"""OperatorReport: what the model calls, and whether the target has it."""

from __future__ import annotations

from typing import ClassVar, Literal

from day0.artifacts.base import Artifact, Frozen

Status = Literal["native", "composite", "fallback", "missing", "unknown"]


class Operator(Frozen):
    """One operator overload in one phase. `flops` and `bytes` are None where no formula is known, never 0."""

    name: str
    calls: int
    flops: float | None
    bytes: float | None
    share: float | None
    """Of the phase's least possible time on the target, 0 to 1."""
    status: Status
    via: str | None = None
    """For `composite` what it becomes, for `fallback` where it runs."""


class Phase(Frozen):
    operators: tuple[Operator, ...]
    flops: float
    bytes: float


class Gap(Frozen):
    """An operator that the target lacks, with what it costs."""

    name: str
    status: Status
    phases: tuple[str, ...]
    share: float | None
    advice: str


class OperatorReport(Artifact):
    kind: ClassVar[str] = "operators"

    target: str
    prompt: int
    context: int
    phases: dict[str, Phase]
    gaps: tuple[Gap, ...]
