"""SHA-256 of files as they are read and written, on all cores, within a fixed amount of memory."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Self


class Buffer:
    """Memory that goes back to its pool when nobody uses it any more."""

    def __init__(self, size: int, pool: BufferPool) -> None:
        self.view = memoryview(bytearray(size))
        self._pool = pool
        self._users = 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        """One more user."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """One user less; the last one gives the buffer back."""
        with self._lock:
            self._users -= 1
            free = self._users == 0
            if free:
                self._users = 1  # the next taker's
        if free:
            self._pool.give(self)


class BufferPool:
    """`count` buffers of `size` bytes, made once: fresh allocations cost page faults, above all on a busy machine."""

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self._free = deque(Buffer(size, self) for _ in range(count))
        self._available = threading.Semaphore(count)

    def take(self) -> Buffer:
        """A free buffer, once there is one: this is what bounds how far reading runs ahead of hashing."""
        self._available.acquire()
        return self._free.popleft()

    def give(self, buffer: Buffer) -> None:
        self._free.append(buffer)
        self._available.release()


class HashPool:
    """Threads that hash many files at once; what is queued for one file is done in order, by one thread at a time."""

    def __init__(self, threads: int) -> None:
        self._condition = threading.Condition()
        self._ready: deque[FileHash] = deque()
        self._pending = 0
        self._closed = False
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._work, name="sha256", daemon=True) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def submit(self, file: FileHash, job: Callable[[], None]) -> None:
        """Queue a job of a file."""
        with self._condition:
            file.jobs.append(job)
            self._pending += 1
            if not file.busy:
                file.busy = True
                self._ready.append(file)
                self._condition.notify()

    def finish(self) -> None:
        """Wait for all that is queued, and raise the error of a job that failed."""
        with self._condition:
            self._condition.wait_for(lambda: not self._pending)
            if self._error:
                raise self._error

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._ready or self._closed)
                if not self._ready:
                    return
                file = self._ready.popleft()
                job = file.jobs.popleft()
            error: BaseException | None = None
            try:
                job()
            except (OSError, EOFError) as failure:
                error = failure
            with self._condition:
                self._error = self._error or error
                self._pending -= 1
                if file.jobs:
                    self._ready.append(file)
                    self._condition.notify()
                else:
                    file.busy = False
                if not self._pending:
                    self._condition.notify_all()


class FileHash:
    """The SHA-256 of one file, fed in pieces.

    Pieces that come in the file's order are hashed from memory. What is passed over is read again when its turn
    comes (from the page cache, if it was read before). Feed from one thread.
    """

    def __init__(self, pool: HashPool, descriptor: int) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.busy = False
        self._pool = pool
        self._descriptor = descriptor
        self._sha = hashlib.sha256()
        self._frontier = 0
        self._passed: dict[int, int] = {}
        """Ranges beyond the frontier that were passed over: begin → end."""

    def feed_bytes(self, data: bytes) -> None:
        """The next bytes of the file, which nobody changes."""
        self._pool.submit(self, lambda: self._sha.update(data))
        self._frontier += len(data)

    def feed(self, offset: int, view: memoryview, buffer: Buffer) -> None:
        """Bytes at `offset`; the buffer is held until they are hashed."""
        if offset != self._frontier:
            self.pass_over(offset, offset + len(view))
            return
        buffer.hold()

        def job() -> None:
            try:
                self._sha.update(view)
            finally:
                buffer.release()

        self._pool.submit(self, job)
        self._frontier += len(view)
        self._advance()

    def pass_over(self, begin: int, end: int) -> None:
        """A range that is not hashed from memory: it is read when its turn comes."""
        if end > begin:
            self._passed[begin] = end
            self._advance()

    def _advance(self) -> None:
        while (end := self._passed.pop(self._frontier, None)) is not None:
            self.catch_up(end)

    def catch_up(self, end: int) -> None:
        """Hash up to `end` by reading the file."""
        begin, self._frontier = self._frontier, end
        if end > begin:
            self._pool.submit(self, lambda: self._hash_range(begin, end))

    def hexdigest(self) -> str:
        """The digest, once the pool has finished."""
        return self._sha.hexdigest()

    def _hash_range(self, begin: int, end: int) -> None:
        view = memoryview(bytearray(1 << 20))
        while begin < end:
            count = os.preadv(self._descriptor, [view[: end - begin]], begin)
            if not count:
                raise EOFError("the file became shorter while it was read")
            self._sha.update(view[:count])
            begin += count
