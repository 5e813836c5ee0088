"""What became of an accepted kernel in a run: how many calls reached it, and how many it failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from day0.artifacts.base import Frozen
from day0.errors import EvidenceMissing
from day0.verdict import Check, Verdict


class KernelUse(Frozen):
    """One kernel in the place of one operator, in one process."""

    operator: str
    kernel: str
    calls: NonNegativeInt = 0
    """Calls that the kernel answered."""
    fallbacks: NonNegativeInt = 0
    """Calls that it failed, which what was there before answered, or the CPU."""
    reason: str = ""
    """Why it first failed."""


_USES = TypeAdapter(tuple[KernelUse, ...])


def read_uses(folder: Path) -> tuple[KernelUse, ...]:
    """The sum of what the processes of an engine wrote to `folder`, a file each (see engine_plugin).

    Raises:
        EvidenceMissing: no process wrote anything, or a file is not what the plugin writes.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise EvidenceMissing(f"no process of the engine wrote to {folder}: the kernels' plugin was not loaded")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for file in files:
        try:
            uses = _USES.validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            raise EvidenceMissing(f"{file} is not what the kernels' plugin writes: {error}") from error
        for use in uses:
            its = found.setdefault((use.operator, use.kernel), {"calls": 0, "fallbacks": 0, "reason": ""})
            its["calls"] += use.calls
            its["fallbacks"] += use.fallbacks
            its["reason"] = its["reason"] or use.reason
    return tuple(KernelUse(operator=o, kernel=k, **its) for (o, k), its in sorted(found.items()))


def judge_uses(uses: tuple[KernelUse, ...]) -> Check:
    """`fail` where a kernel was never reached or failed calls: what it should have done, something else did."""
    if not uses:
        return Check(name="use", verdict=Verdict.INCONCLUSIVE, reason="no kernel was offered to the run")
    measured = {"uses": [use.to_json() for use in uses]}
    unreached = [f"{u.kernel} for {u.operator}" for u in uses if not u.calls and not u.fallbacks]
    failed = [f"{u.kernel} for {u.operator} ({u.fallbacks:,} calls: {u.reason})" for u in uses if u.fallbacks]
    said = [f"no call reached {', '.join(unreached)}"] if unreached else []
    said += [f"failed and fell back, to be followed up: {', '.join(failed)}"] if failed else []
    if said:
        return Check(name="use", verdict=Verdict.FAIL, reason="; ".join(said), measured=measured)
    counts = ", ".join(f"{use.kernel} {use.calls:,} for {use.operator}" for use in uses)
    return Check(name="use", verdict=Verdict.PASS, reason=f"calls that reached kernels: {counts}", measured=measured)
