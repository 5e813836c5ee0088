"""What was measured on the device."""

from __future__ import annotations

from collections.abc import Iterable

from day0.artifacts.operators import Outcome, Status
from tasks.operators.records import Measured
from tasks.operators.support.findings import Finding

_STATUS: dict[Outcome, Status] = {
    "works": "native", "slow": "native", "falls back": "fallback", "does not run": "missing", "wrong": "missing"
}  # fmt: skip
_BADNESS: tuple[Outcome, ...] = tuple(_STATUS)


class Measurements:
    """Measurements by overload. Of several of one overload each must be well: the worst counts."""

    def __init__(self, measured: Iterable[Measured], device: str) -> None:
        self.device = device
        self.by_overload: dict[str, Finding] = {}
        for one in measured:
            finding = _finding(one, device)
            before = self.by_overload.get(one.overload)
            if before is None or _badness(finding) > _badness(before):
                self.by_overload[one.overload] = finding

    def find(self, overload: str) -> Finding | None:
        return self.by_overload.get(overload)


def outcome_of(measured: Measured) -> Outcome:
    """The worst of what was seen. A wrong result is worse than none."""
    if measured.wrong:
        return "wrong"
    if measured.falls_back:
        return "falls back"
    if not measured.works:
        return "does not run"
    return "slow" if measured.slow else "works"


def _finding(measured: Measured, device: str) -> Finding:
    """An operator that gives wrong results counts as missing. A slow one is there."""
    outcome = outcome_of(measured)
    status = _STATUS[outcome]
    return Finding(
        kind="measured",
        status=status,
        via="CPU" if status == "fallback" else None,
        source=device,
        detail=f"{outcome}: {measured.detail}" if measured.detail else outcome,
        outcome=outcome,
    )


def _badness(finding: Finding) -> int:
    return _BADNESS.index(finding.outcome or "works")
