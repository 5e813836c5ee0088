"""SHA-256 of files as they are read and written, on all cores, within a fixed amount of memory."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from typing import Protocol

import numpy as np

from day0.deadline import Deadline


class Stopped(Exception):
    """Another thread failed, or the run was interrupted: this one ends too."""


class Control:
    """What all threads of a run share: whether to go on, and how far they are."""

    def __init__(self, limit: Deadline) -> None:
        self._limit = limit
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.done = 0

    def check(self) -> None:
        """Raise where the run was stopped or its time is up. Called for every block."""
        if self._stopped.is_set():
            raise Stopped
        self._limit.check()

    def stop(self) -> None:
        self._stopped.set()

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count


class Buffer:
    """Memory that goes back to its pool when nobody uses it any more."""

    def __init__(self, size: int, pool: BufferPool | None) -> None:
        self.array = np.empty(size, np.uint8)
        self.view = self.array.data
        self.taker = 0
        """The thread that took it last."""
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
        if free and self._pool:
            self._pool.give(self)


class BufferPool:
    """`count` buffers of `size` bytes, made once: fresh allocations cost page faults, above all on a busy machine.

    A thread gets a buffer back that it had before, where one is free: one that another core's cache still holds costs
    a third more to read into, and twice as much to gather into (measured on two cores; benchmarks/RESULTS.md).
    """

    def __init__(self, size: int, count: int, control: Control) -> None:
        self.size = size
        self._control = control
        self._free = [Buffer(size, self) for _ in range(count)]
        """The one used last at the end: the caches have more of it than of the others."""
        self._given = threading.Condition(threading.Lock())

    def take(self) -> Buffer:
        """A free buffer, once there is one: this is what bounds how far reading runs ahead of hashing."""
        thread = threading.get_ident()
        with self._given:
            while not self._free:
                self._control.check()
                self._given.wait(0.2)
            own = (place for place in reversed(range(len(self._free))) if self._free[place].taker == thread)
            buffer = self._free.pop(next(own, -1))
        buffer.taker = thread
        return buffer

    def give(self, buffer: Buffer) -> None:
        with self._given:
            self._free.append(buffer)
            self._given.notify()


class Shareable(Protocol):
    """Work that other threads can take part in."""

    def drain(self) -> None:
        """Do of it what nobody has begun."""


class Helpers:
    """Threads that have no shard of their own (any more) and hash or copy for those that have."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._ready: deque[Shareable] = deque()
        self._idle = 0
        self._closed = False

    def offer(self, work: Shareable) -> bool:
        """Whether an idle thread takes it."""
        if not self._idle:  # as a rule: every block asks
            return False
        with self._condition:
            if len(self._ready) >= self._idle:
                return False
            self._ready.append(work)
            self._condition.notify()
            return True

    def help(self) -> None:
        """Do what is offered, until `close`."""
        while True:
            with self._condition:
                self._idle += 1
                self._condition.wait_for(lambda: self._ready or self._closed)
                self._idle -= 1
                if not self._ready:
                    return
                work = self._ready.popleft()
            work.drain()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class FileHash:
    """The SHA-256 of one file, fed in pieces from any thread.

    Pieces that come in the file's order are hashed from memory: by an idle thread where there is one, else by the
    thread that feeds. Pieces that come early are read again (from the page cache) as soon as what lies before them
    has been hashed.
    """

    def __init__(self, descriptor: int, helpers: Helpers, control: Control) -> None:
        self._descriptor, self._helpers, self._control = descriptor, helpers, control
        self._sha = hashlib.sha256()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: deque[tuple[memoryview, Buffer | None] | tuple[int, int]] = deque()
        self._busy = False
        self._frontier = 0
        """Up to here the file is hashed, or will be by what is queued."""
        self._early: dict[int, int] = {}
        """Ranges beyond the frontier that are in the file: begin → end; those that touch are one."""
        self._early_begin: dict[int, int] = {}

    def feed(self, offset: int, view: memoryview, buffer: Buffer | None) -> None:
        """Bytes at `offset`, which are in the file already; the buffer is held until they are hashed.

        Without a buffer the memory is the caller's, who does not wait: what cannot be hashed at once is read again.
        """
        end = offset + len(view)
        if not view:
            return
        with self._lock:
            if offset != self._frontier or (buffer is None and (self._busy or self._jobs)):
                self._note(offset, end)
                return
            if buffer:
                buffer.hold()
            self._jobs.append((view, buffer))
            self._frontier = end
            self._queue_early()
            busy = self._busy
            self._busy = busy or buffer is None
        if buffer is None:
            self._work()  # by this thread and no other: the memory is its own
        elif not (busy or self._helpers.offer(self)):
            self.drain()

    def present(self, begin: int, end: int) -> None:
        """A range that is in the file and was not fed; it is read when its turn comes."""
        with self._lock:
            if begin < end:
                self._note(begin, end)

    def drain(self) -> None:
        """Hash what is queued, unless another thread is at it."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        self._work()

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._jobs:
                        self._busy = False
                        self._idle.notify_all()
                        return
                    job = self._jobs.popleft()
                self._do(job)
        except BaseException:
            with self._lock:
                self._busy = False
                self._idle.notify_all()
            raise

    def finish(self, nbytes: int) -> str:
        """The digest of the file's `nbytes`, all of which have been fed.

        Raises:
            ValueError: they have not.
        """
        self.drain()
        with self._lock:
            while self._busy or self._jobs:
                self._idle.wait(0.2)
                self._control.check()
            if self._frontier != nbytes or self._early:
                raise ValueError(f"bytes from {self._frontier:,} on were not written, of {nbytes:,}")
        return self._sha.hexdigest()

    def _note(self, begin: int, end: int) -> None:
        begin = self._early_begin.pop(begin, begin)
        end = self._early.pop(end, end)
        self._early[begin], self._early_begin[end] = end, begin
        self._queue_early()

    def _queue_early(self) -> None:
        while (end := self._early.pop(self._frontier, None)) is not None:
            del self._early_begin[end]
            self._jobs.append((self._frontier, end))
            self._frontier = end

    def _do(self, job: tuple[memoryview, Buffer | None] | tuple[int, int]) -> None:
        if isinstance(job[0], memoryview):
            view, buffer = job
            try:
                self._sha.update(view)
            finally:
                if isinstance(buffer, Buffer):
                    buffer.release()
            return
        begin, end = job
        assert isinstance(end, int)
        scratch = _scratch()
        while begin < end:
            self._control.check()
            count = os.preadv(self._descriptor, [scratch[: end - begin]], begin)
            if not count:
                raise EOFError("a file became shorter while it was read")
            self._sha.update(scratch[:count])
            begin += count


_thread = threading.local()


def _scratch() -> memoryview:
    """Memory of the running thread, to read into what is hashed."""
    view: memoryview | None = getattr(_thread, "scratch", None)
    if view is None:
        view = _thread.scratch = memoryview(bytearray(512 << 10))
    return view
