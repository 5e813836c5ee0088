"""Memory that each thread uses again and again: fresh memory costs a page fault for every four kilobytes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

_local = threading.local()


def scratch(name: str, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`size` elements, uninitialised, of this thread's memory of that name, until the next call with that name."""
    buffers: dict[str, NDArray[np.uint8]] = _local.__dict__
    nbytes = size * dtype.itemsize
    buffer = buffers.get(name)
    if buffer is None or len(buffer) < nbytes:
        buffer = buffers[name] = np.empty(nbytes, np.uint8)
    return buffer[:nbytes].view(dtype)
