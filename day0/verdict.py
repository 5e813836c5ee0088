"""Verdicts of checks, and the ladder of rungs that is computed from verdicts alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Verdict(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        """Whether later stages may build on this one."""
        return self in (Verdict.PASS, Verdict.SKIPPED)


_SEVERITY = {Verdict.SKIPPED: 0, Verdict.PASS: 1, Verdict.INCONCLUSIVE: 2, Verdict.FAIL: 3}
_EXIT_CODE = {Verdict.PASS: 0, Verdict.SKIPPED: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}


#: In what a check measured: sentences on what did not go as it should and yet fails nothing, as work to follow up.
FOLLOW_UP = "follow_up"


class Check(BaseModel):
    """One thing that was checked: its verdict, why, and the numbers that the verdict rests on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    verdict: Verdict
    reason: str
    measured: dict[str, Any] = Field(default_factory=dict)


def follow_up(checks: Iterable[Check]) -> list[str]:
    """What checks leave to be followed up, each sentence once."""
    return list(dict.fromkeys(sentence for check in checks for sentence in check.measured.get(FOLLOW_UP, ())))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a whole: that of its worst part. A whole without parts found nothing to check: `fail`."""
    return max(verdicts, key=_SEVERITY.__getitem__, default=Verdict.FAIL)


def exit_code(verdict: Verdict) -> int:
    """The command line's exit code for a verdict."""
    return _EXIT_CODE[verdict]


class Rung(StrEnum):
    """The status of a model on a target."""

    NONE = "none"
    RUNS = "runs"
    CORRECT = "correct"
    STABLE = "stable"
    FAST = "fast"


#: What each rung needs, beyond the rung below it: stages whose artifact must exist and be good.
#: A stage that was never run is missing evidence, so the rung is not reached.
LADDER: Mapping[Rung, tuple[str, ...]] = {
    Rung.RUNS: ("service", "smoke"),
    Rung.CORRECT: ("precision", "multimodal", "kernels"),
    Rung.STABLE: ("stability",),
    Rung.FAST: ("benchmark", "baseline"),
}


def rung(evidence: Mapping[str, Verdict]) -> Rung:
    """The highest rung whose evidence, and that of every rung below, is there and good.

    `evidence` holds the verdicts of stages that produced an artifact; stages that did not run are absent.
    """
    return _climb(evidence)[0]


def missing_evidence(evidence: Mapping[str, Verdict]) -> tuple[Rung | None, list[str]]:
    """The next rung (None at the top) and what keeps it out of reach, such as `precision has not run`."""
    return _climb(evidence)[1:]


def _climb(evidence: Mapping[str, Verdict]) -> tuple[Rung, Rung | None, list[str]]:
    reached = Rung.NONE
    for next_rung, stages in LADDER.items():
        lacking = [
            f"{stage}: {evidence[stage]}" if stage in evidence else f"{stage} has not run"
            for stage in stages
            if stage not in evidence or not evidence[stage].good
        ]
        if lacking:
            return reached, next_rung, lacking
        reached = next_rung
    return reached, None, []
