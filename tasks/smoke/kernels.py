"""How many calls of the smoke's requests reached the kernels that the engine was given."""

from __future__ import annotations

import logging
import time

from day0.artifacts.smoke import SmokeReport
from day0.deadline import current
from day0.endpoint import Endpoint
from day0.errors import EvidenceMissing
from day0.kernel_uses import KernelUse, judge_uses, read_uses, uses_since
from day0.verdict import Check, Verdict, follow_up

log = logging.getLogger("day0.smoke")

#: Seconds between two readings: the engine's processes write twice a second, if something has changed.
INTERVAL = 1.2
#: Seconds until what is still changing is taken as it is.
LIMIT = 12.0


class Counting:
    """Reads the counts of an endpoint before its requests and after."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._read = endpoint.kernel_uses
        self._before: tuple[KernelUse, ...] = ()
        self._found: tuple[KernelUse, ...] | EvidenceMissing = ()

    def begin(self) -> None:
        if self._read is None:
            return
        try:
            self._before = self._settled()
        except EvidenceMissing:
            self._before = ()  # said at the end, if it is still so

    def end(self) -> None:
        """Called while the engine that answered is up: its counts go with it."""
        if self._read is None:
            return
        try:
            self._found = uses_since(self._before, self._settled())
        except EvidenceMissing as error:
            self._found = error

    def judged(self, report: SmokeReport) -> SmokeReport:
        """The report with the check of kernels; as it is where the engine was given none."""
        if self._read is None:
            return report
        if isinstance(self._found, EvidenceMissing):
            check = Check(name="kernels", verdict=Verdict.INCONCLUSIVE, reason=str(self._found))
        else:
            check = judge_uses(self._found, otherwise=report.verdict)
        for sentence in follow_up([check]):
            log.warning("follow-up: %s", sentence)
        return report.model_copy(update={"checks": (*report.checks, check)})

    def _settled(self) -> tuple[KernelUse, ...]:
        assert self._read is not None
        ends, last = time.monotonic() + LIMIT, self._read()
        while time.monotonic() < ends:
            current().check()
            time.sleep(INTERVAL)
            now = self._read()
            if now == last:
                break
            last = now
        return read_uses(last)
