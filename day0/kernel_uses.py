"""What became of accepted kernels in a run: how many calls reached them, and how many they failed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from day0.artifacts.base import Frozen
from day0.errors import EvidenceMissing
from day0.verdict import FOLLOW_UP, Check, Verdict

#: The variable that names the folder where an engine's processes write their counts, a JSON file each.
USES = "DAY0_KERNEL_USES"


class KernelUse(Frozen):
    """One kernel in the place of one operator."""

    operator: str
    kernel: str
    calls: NonNegativeInt = 0
    """Calls that the kernel answered."""
    declined: NonNegativeInt = 0
    """Calls that it was not given, since it was not accepted for their dtype, device or form."""
    fallbacks: NonNegativeInt = 0
    """Calls that it failed, which what was there before answered, or the CPU."""
    reason: str = Field(default="", max_length=1000)
    """Why it first failed."""


_USES = TypeAdapter(tuple[KernelUse, ...])


def read_uses(written: Iterable[bytes]) -> tuple[KernelUse, ...]:
    """The sum of what the processes of an engine wrote, one JSON text each (tasks/kernels/engine_plugin/counts.py).

    Raises:
        EvidenceMissing: no process wrote anything, or something is not what the plugin writes.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    texts = list(written)
    if not texts:
        raise EvidenceMissing(
            "no process of the engine wrote how often kernels were called: their plugin was not loaded"
        )
    for text in texts:
        try:
            uses = _USES.validate_json(text)
        except ValidationError as error:
            raise EvidenceMissing(
                f"what a process of the engine wrote is not what the kernels' plugin writes: {error.errors()[0]['msg']}"
            ) from error
        for use in uses:
            its = found.setdefault((use.operator, use.kernel), {"reason": ""})
            for count in ("calls", "declined", "fallbacks"):
                its[count] = its.get(count, 0) + getattr(use, count)
            its["reason"] = its["reason"] or use.reason
    return tuple(KernelUse(operator=o, kernel=k, **its) for (o, k), its in sorted(found.items()))


@dataclass(frozen=True)
class InKernel:
    """A process of an engine that has called a kernel, and that had no answer yet when this was written."""

    kernel: str
    operator: str
    seconds: float
    """Since the call."""


def read_marks(written: Iterable[bytes]) -> list[InKernel]:
    """The kernels that processes of an engine are in, or were in when they ended.

    Args:
        written: of each process its mark's two numbers and then its counts (tasks/kernels/engine_plugin/counts.py).
            What the plugin does not write says nothing.
    """
    found = []
    for text in written:
        place, _, rest = text.strip().partition(b" ")
        entered, _, counts = rest.strip().partition(b" ")
        try:
            at, since, uses = int(place), int(entered), _USES.validate_json(counts)
        except ValueError:
            continue
        if 0 < at <= len(uses):
            use = uses[at - 1]
            found.append(InKernel(use.kernel, use.operator, time.monotonic() - since / 1e9))
    return found


def uses_since(before: Sequence[KernelUse], now: Sequence[KernelUse]) -> tuple[KernelUse, ...]:
    """The calls between two readings. Failures stay counted from the start: one while it warmed up is one, too."""
    earlier = {(use.operator, use.kernel): use for use in before}
    return tuple(
        use.model_copy(
            update={
                count: max(0, getattr(use, count) - getattr(earlier[use.operator, use.kernel], count))
                for count in ("calls", "declined")
            }
        )
        if (use.operator, use.kernel) in earlier
        else use
        for use in now
    )


def judge_uses(uses: Sequence[KernelUse], otherwise: Verdict = Verdict.FAIL) -> Check:
    """Whether each kernel answered calls, in one of its places at least, and failed none.

    Args:
        otherwise: the verdict on what ran, which something else than the kernel then computed in part. Where that is
            good the check is `pass`, and names what to follow up in its reason and in `measured`.
    """
    if not uses:
        return Check(name="kernels", verdict=Verdict.INCONCLUSIVE, reason="no kernel was offered to the run")
    follow_up = [*_failed(uses), *_unreached(uses)]
    answered = sum(use.calls for use in uses)
    reached = ", ".join(f"{use.calls:,} {use.kernel} for {use.operator}" for use in uses if use.calls)
    said = [f"kernels answered {answered:,} calls ({reached})" if answered else "no call reached a kernel"]
    said += [f"to follow up: {'; '.join(follow_up)}"] if follow_up else []
    verdict = Verdict.PASS if not follow_up or otherwise.good else otherwise
    if follow_up and not otherwise.good:
        said.append("and the model's own checks are not good")
    measured = {"uses": [use.to_json() for use in uses], **({FOLLOW_UP: follow_up} if follow_up else {})}
    return Check(name="kernels", verdict=verdict, reason="; ".join(said), measured=measured)


def _failed(uses: Sequence[KernelUse]) -> list[str]:
    """Kernels that failed, place by place."""
    return [
        f"kernel {u.kernel} failed {u.fallbacks:,} calls of {u.operator} and was fallen back from: {u.reason}"
        if u.fallbacks
        else f"kernel {u.kernel} was not put in the place of {u.operator}: {u.reason}"
        for u in uses
        if u.reason
    ]


def _unreached(uses: Sequence[KernelUse]) -> list[str]:
    """Kernels that no call reached in any of their places, and which of these the model called otherwise."""
    found = []
    for kernel in dict.fromkeys(use.kernel for use in uses):
        its = [use for use in uses if use.kernel == kernel]
        if any(use.calls or use.reason for use in its):
            continue
        declined = [f"{use.declined:,} of {use.operator}" for use in its if use.declined]
        why = (
            f"it was not accepted for the dtype, device or form of those that there were ({', '.join(declined)})"
            if declined
            else f"the model called none of {', '.join(use.operator for use in its)}"
        )
        found.append(f"no call reached kernel {kernel}: {why}")
    return found
