"""The roofline of a step on a target: which class of operator bounds it, and the least possible time.

Williams, Waterman and Patterson 2009 (10.1145/1498765.1498785): the longer of computing at the peak rate and moving at
the memory's peak bandwidth. Within a class the two overlap; classes follow each other. No engine beats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from day0.architecture.work import ClassWork

#: Format that weights are stored in → the dtype of the arithmetic that computes with it, where they differ. Weights of
#: 4-bit integers are computed out as they are read.
ARITHMETIC = {"fp8_block": "fp8", "mxfp8": "fp8", "int4": "bfloat16"}

#: What every format can be computed out to.
COMPUTED_OUT = "bfloat16"


@dataclass(frozen=True)
class Bound:
    """One class on the roofline. `by` says what it waits for; None where neither rate is known."""

    name: str
    dtype: str
    flops: float
    bytes: float
    seconds: float | None
    by: Literal["compute", "memory"] | None

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.bytes else None


def arithmetic_dtype(stored: str, flops: Mapping[str, float]) -> str:
    """What a target computes in with weights of a format: natively, or computed out to bfloat16."""
    wanted = ARITHMETIC.get(stored, stored)
    return wanted if wanted in flops else COMPUTED_OUT


def bounds(classes: Sequence[ClassWork], flops: Mapping[str, float], bandwidth: float | None) -> tuple[Bound, ...]:
    """Every class on the roofline of a device.

    Args:
        flops: FLOPs per second by the dtype of the arithmetic.
        bandwidth: bytes per second.
    """
    return tuple(_bound(part, flops.get(arithmetic_dtype(part.dtype, flops)), bandwidth) for part in classes)


def _bound(part: ClassWork, rate: float | None, bandwidth: float | None) -> Bound:
    computing = part.flops / rate if rate else None
    moving = part.bytes / bandwidth if bandwidth else None
    known = [(seconds, by) for seconds, by in ((moving, "memory"), (computing, "compute")) if seconds is not None]
    if not known:
        return Bound(part.name, part.dtype, part.flops, part.bytes, None, None)
    seconds, by = max(known, key=lambda item: item[0])
    return Bound(part.name, part.dtype, part.flops, part.bytes, seconds, "compute" if by == "compute" else "memory")


def least_seconds(found: Sequence[Bound]) -> float | None:
    """The least time of the whole step; None where a class's is not known."""
    times = [bound.seconds for bound in found]
    return None if None in times else sum(seconds for seconds in times if seconds is not None)


def hotspots(found: Sequence[Bound], share: float = 0.8) -> tuple[Bound, ...]:
    """The classes that together take `share` of the time, most first: where work on speed pays."""
    ordered = sorted((bound for bound in found if bound.seconds), key=lambda bound: -(bound.seconds or 0.0))
    total = sum(bound.seconds or 0.0 for bound in ordered)
    chosen: list[Bound] = []
    while ordered and sum(bound.seconds or 0.0 for bound in chosen) < share * total:
        chosen.append(ordered.pop(0))
    return tuple(chosen)
