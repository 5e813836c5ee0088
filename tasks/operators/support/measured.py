"""What was measured on the device."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.operators.records import Measured
from tasks.operators.support.findings import Finding


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


def _finding(measured: Measured, device: str) -> Finding:
    """A wrong result is worse than none: the operator counts as missing. A slow one is there."""
    detail = measured.detail
    if measured.wrong:
        status, word = "missing", "wrong"
    elif measured.falls_back:
        status, word = "fallback", "runs on the CPU"
    elif not measured.works:
        status, word = "missing", "does not run"
    else:
        status, word = "native", "slow" if measured.slow else "works"
    return Finding.model_validate(
        {
            "kind": "measured",
            "status": status,
            "via": "CPU" if status == "fallback" else None,
            "source": device,
            "detail": f"{word}: {detail}" if detail else word,
            "slow": measured.slow and status == "native",
        }
    )


def _badness(finding: Finding) -> int:
    return 2 * ("native", "fallback", "missing").index(finding.status) + finding.slow
