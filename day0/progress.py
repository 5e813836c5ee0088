"""Progress of long work: stages report it, whoever shows it (a terminal, a log) subscribes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a piece of work stands. `total` is None while it is not known; `unit` is `B`, `files`, …"""

    stage: str
    what: str
    done: float = 0
    total: float | None = None
    unit: str = ""


Listener = Callable[[Progress], None]
_listener: ContextVar[tuple[str, Listener] | None] = ContextVar("progress", default=None)


def report(what: str, done: float = 0, total: float | None = None, unit: str = "") -> None:
    """Say where the current work stands; cheap when nobody listens."""
    if subscription := _listener.get():
        stage, listener = subscription
        listener(Progress(stage, what, done, total, unit))


@contextmanager
def listening(stage: str, listener: Listener) -> Iterator[None]:
    """Send what the body reports to `listener`, under the name `stage`."""
    token = _listener.set((stage, listener))
    try:
        yield
    finally:
        _listener.reset(token)
