"""What the acceptance's process is asked, and what it answers."""

from __future__ import annotations

from typing import Any, Literal

from day0.artifacts.base import Frozen


class Request(Frozen):
    """One kernel on one backend."""

    folder: str
    backend: str
    library: str | None
    """The built library, for a compiled backend."""
    device: str = "cpu"
    key: str | None = None
    """The dispatch key, where it is not the backend's own."""
    seed: int
    largest: int | None = None
    """Cases that move more bytes in float32 are left out, where it is slow (Triton's interpreter); None: all."""


class Answer(Frozen):
    """`fault` is the first fault found, or None; `error` the figures that the verdict rests on."""

    fault: str | None
    kind: str | None = None
    """What kind of fault, one of `faults.KINDS`."""
    error: dict[str, Any]


class TimingRequest(Frozen):
    """The timing of one kernel on one backend."""

    folder: str
    backend: str
    library: str | None
    device: str = "cpu"
    seed: int
    repeats: int
    dtypes: tuple[str, ...]
    compiled: bool


class Timed(Frozen):
    """Medians of one case and dtype, seconds; `speedup` over eager and compiled; `roofline` the share of bandwidth."""

    case: str
    dtype: str
    kernel: float
    eager: float
    compiled: float | None
    outputs: Literal["given", "fresh"]
    bytes: float
    roofline: float


class TimingAnswer(Frozen):
    """`bandwidth` is that of a copy measured in the same run, bytes a second (read and written)."""

    fault: str | None
    bandwidth: float | None
    timed: tuple[Timed, ...]
