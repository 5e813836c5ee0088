"""The memory bandwidth of this machine, measured: what decoding is bound by."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from day0 import deadline
from tasks.benchmark.machine import last_level_cache

#: The buffers together are at least this many times the last-level cache, so that little of them stays in it.
_CACHES = 8
_LEAST = 512 << 20
_REPEATS = 7


def measure(threads: int | None = None, total_bytes: int | None = None) -> float:
    """Read bandwidth in bytes a second: the median of several passes, all threads reading at once.

    Each thread sums its own buffer of 64-bit integers (numpy releases the interpreter lock and uses vector
    instructions; on the machines tried it reads as fast as memcmp and a BLAS dot product), so each byte is read
    exactly once a pass. `threads` defaults to the cores that this process may use.
    """
    count = threads or len(os.sched_getaffinity(0))
    size = (total_bytes or max(_LEAST, _CACHES * last_level_cache())) // count // 8
    # Written, not just reserved: untouched pages of zeros would all be one page.
    buffers = [np.full(size, index + 1, dtype=np.int64) for index in range(count)]
    with ThreadPoolExecutor(count) as pool:
        rates = [_pass(pool, buffers) for _ in range(_REPEATS + 1)]
    return statistics.median(rates[1:])


def _pass(pool: ThreadPoolExecutor, buffers: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
    """Bytes a second of reading all buffers once."""
    deadline.current().check()
    started = time.perf_counter()
    sums = list(pool.map(np.sum, buffers))
    seconds = time.perf_counter() - started
    expected = [buffer.size * (index + 1) for index, buffer in enumerate(buffers)]
    assert sums == expected, "a buffer was not read whole"
    return sum(buffer.nbytes for buffer in buffers) / seconds
