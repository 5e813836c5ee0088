"""SHA-256 of many files at once, each computed once for as long as the file stays as it is."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

from day0 import deadline
from day0.hash_cache import claim
from day0.progress import report

_BLOCK = 1 << 20  # stays in a core's cache between being read and being hashed
_THREADS = min(os.cpu_count() or 1, 16)


def hash_file(path: Path, *, rehash: bool = False, progress: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a file, as it is known or computed now; `progress` is told the bytes of each step.

    Raises:
        FileChanged: it was written to meanwhile.
        OSError: it cannot be read.
    """
    with claim(path, rehash=rehash, waiting=lambda: progress(0)) as reading:
        if reading.known:
            progress(reading.stat.st_size)
            return reading.known
        digest = hashlib.sha256()
        buffer = bytearray(_BLOCK)
        view = memoryview(buffer)
        os.posix_fadvise(reading.descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        done = 0
        # No further than its size, or the reader of a file that someone appends to might never arrive at its end.
        while done <= reading.stat.st_size and (count := os.readv(reading.descriptor, [buffer])):
            digest.update(view[:count])
            progress(count)
            done += count
        return reading.record(digest.hexdigest())


def hash_files(paths: Iterable[Path], *, rehash: bool = False) -> dict[Path, str | OSError]:
    """SHA-256 of each file, computed on all cores, or the error that kept it from being read.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    sizes = {path: path.stat().st_size if path.exists() else 0 for path in dict.fromkeys(paths)}
    total = sum(sizes.values())
    limit = deadline.current()
    done = 0
    lock = threading.Lock()

    def add(count: int) -> None:
        nonlocal done
        limit.check()
        with lock:
            done += count

    def one(path: Path) -> str | OSError:
        try:
            return hash_file(path, rehash=rehash, progress=add)
        except OSError as error:
            return error

    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        # The largest first: a large one that begins last would be waited for alone.
        order = sorted(sizes, key=lambda path: -sizes[path])
        futures = {path: pool.submit(copy_context().run, one, path) for path in order}
        results: dict[Path, str | OSError] = {}
        for path, future in futures.items():
            while True:
                try:
                    results[path] = future.result(timeout=0.5)
                    break
                except TimeoutError:
                    if future.done():
                        raise
                finally:
                    report("hashing", done, total, "B")
    return results
