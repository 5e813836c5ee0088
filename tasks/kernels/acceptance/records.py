"""What the acceptance's process is asked, and what it answers."""

from __future__ import annotations

from typing import Any

from day0.artifacts.base import Frozen

#: What the process says it is at while it opens the device: what ends it there is no fault of the kernel.
OPENING = "opening the device"


class Request(Frozen):
    """One kernel on one backend."""

    folder: str
    backend: str
    library: str | None
    """The built library, for a compiled backend."""
    device: str = "cpu"
    modules: tuple[str, ...] = ()
    """Imported first: they bring the device."""
    key: str | None = None
    """The dispatch key, where it is not the backend's own."""
    bridged: bool = False
    """The examination stays on the CPU: the device's own operators are not trusted (see bridge.py)."""
    seed: int
    largest: int | None = None
    """Cases that move more bytes in float32 are left out, where it is slow (Triton's interpreter); None: all."""
    dtypes: tuple[str, ...] | None = None
    """None: all of the kernel's."""


class Answer(Frozen):
    """`fault` is the first fault found, or None; `error` the figures that the verdict rests on."""

    absent: str | None = None
    """Why the device could not be opened: then nothing was tried."""
    fault: str | None
    kind: str | None = None
    """What kind of fault, one of `faults.KINDS`."""
    error: dict[str, Any]
