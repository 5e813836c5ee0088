"""Time limits that really end what is running.

Prefect marks a task as timed out, but a blocking call in a worker thread goes on. Whatever can block
(a subprocess, an HTTP client, a container) is therefore guarded: when the time is up, or the run is cancelled,
the guard's `end` is called from another thread, the blocked call returns with an error, and that error is
reported as what it was: a timeout or a cancellation.
"""

from __future__ import annotations

import asyncio
import fcntl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from day0.errors import Cancelled, StageTimeout

T = TypeVar("T")

_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
_active: set[Deadline] = set()
_active_lock = threading.Lock()


class Deadline:
    """A time limit of `seconds`; None never ends by itself, but can be cancelled."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self.name = name
        self.seconds = seconds
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._guards: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._why: StageTimeout | Cancelled | None = None

    def remaining(self, at_most: float | None = None) -> float | None:
        """Seconds left, never negative, and never more than `at_most`."""
        limits = [x for x in (at_most, self._ends and self._ends - time.monotonic()) if x is not None]
        return max(0.0, min(limits)) if limits else None

    def check(self) -> None:
        """Raise if the time is up or the run was cancelled: for loops that do not block."""
        if self._why:
            raise self._why

    def end(self, why: StageTimeout | Cancelled) -> None:
        """End everything that is guarded; later guards end at once."""
        with self._lock:
            if self._why:
                return
            self._why = why
            guards = list(self._guards.values())
        for guard in guards:
            guard()

    @contextmanager
    def guard(self, end: Callable[[], None]) -> Iterator[None]:
        """While the body runs, `end` is called (from another thread) if this deadline passes.

        Raises:
            StageTimeout, Cancelled: instead of whatever error the ended body raised.
        """
        with self._lock:
            self._guards[id(end)] = end
        try:
            self.check()
            yield
        except BaseException as error:
            if self._why and error is not self._why:
                raise self._why from error
            raise
        finally:
            with self._lock:
                self._guards.pop(id(end), None)
        self.check()

    @contextmanager
    def running(self) -> Iterator[Deadline]:
        """Make this the current deadline, with its clock ticking, for the body."""
        token = _current.set(self)
        timer: threading.Timer | None = None
        if (left := self.remaining()) is not None:
            limit = f"{self.name} took longer than its limit of {self.seconds:g} s and was ended"
            timer = threading.Timer(left, self.end, [StageTimeout(limit)])
            timer.daemon = True
            timer.start()
        with _active_lock:
            _active.add(self)
        try:
            yield self
        except BaseException as error:
            if self._why and error is not self._why:
                raise self._why from error
            raise
        finally:
            with _active_lock:
                _active.discard(self)
            if timer:
                timer.cancel()
            _current.reset(token)


def current() -> Deadline:
    """The deadline of the running stage; outside a stage, one that never passes."""
    return _current.get() or Deadline("this command", None)


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` whose task is cancelled when the current deadline passes; its connections close as it unwinds."""

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end() -> None:
            loop.call_soon_threadsafe(task.cancel)

        with current().guard(end):
            return await main

    return asyncio.run(guarded())


@contextmanager
def file_lock(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file at `path`, waiting for it within the current deadline; `waiting` is called every second.

    The kernel frees the lock when its holder ends, however it ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                current().check()
                waiting()
                time.sleep(1.0)
        yield


def cancel_all(reason: str) -> None:
    """End everything that any running stage waits for (Ctrl-C, SIGTERM)."""
    with _active_lock:
        deadlines = list(_active)
    for deadline in deadlines:
        deadline.end(Cancelled(reason))
