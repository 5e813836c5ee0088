"""What the timing's process is asked, and what it answers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from day0.artifacts.base import Frozen

#: A copy past the caches, built as a kernel is. torch's own reads what it writes over, a third of its traffic, so that
#: shares of its bandwidth flatter kernels.
STREAMING_COPY = Path(__file__).parent / "yardsticks" / "streaming_copy"


class Contender(Frozen):
    """One backend of a kernel."""

    backend: str
    library: str | None
    """The built library, for a compiled backend."""


class TimingRequest(Frozen):
    """The timing of backends of one kernel, side by side."""

    folder: str
    contenders: tuple[Contender, ...]
    device: str = "cpu"
    modules: tuple[str, ...] = ()
    """Imported first: they bring the device to torch."""
    key: str | None = None
    """The dispatch key, where it is not the backends' own."""
    seed: int
    repeats: int
    dtypes: tuple[str, ...]
    compiled: bool
    streaming_copy: str | None = None
    """The built library of the streaming copy, for the CPU; without one torch's copy alone is measured."""


class Timed(Frozen):
    """Medians of one backend, case and dtype, seconds; `roofline` the share of bandwidth."""

    backend: str
    case: str
    dtype: str
    kernel: float
    eager: float
    compiled: float | None
    outputs: Literal["given", "fresh"]
    answered: bool
    """False: the package has nothing for this case, and what was timed is the reference in its place."""
    bytes: float
    roofline: float


class TimingAnswer(Frozen):
    """`bandwidth` is that of the fastest copy that was measured in the same run, bytes a second (read and written)."""

    fault: str | None
    """Of the process, which is not known to be of one backend."""
    faults: dict[str, str]
    """Of a backend: it is timed no further."""
    bandwidth: float | None
    timed: tuple[Timed, ...]
