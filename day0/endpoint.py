"""A served model: where it is, and how to learn why it stopped answering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from day0.artifacts.service import Service
from day0.errors import Unavailable


class EngineDied(Unavailable):
    """The engine ended while it was needed; the message carries its exit code and its own last error line."""

    exit_code = 1


def _unknown() -> str | None:
    return None


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server at `url` (without `/v1`) that serves `model`.

    `diagnose` returns one sentence if the engine is known to have ended, else None: whoever gets a
    connection error asks it before reporting. `kernel_uses` returns what each process of the engine has written about
    the kernels that it was given (day0/kernel_uses.py); None where it was given none.
    """

    url: str
    model: str
    diagnose: Callable[[], str | None] = _unknown
    kernel_uses: Callable[[], list[bytes]] | None = None


@dataclass(frozen=True)
class LastWords:
    """What is known of how an engine ended."""

    kernel: str | None = None
    """The accepted kernel that it was in; None where none is known."""
    log: tuple[str, ...] = ()
    """The lines of its log that a process printed which a signal killed."""


class LiveEngine(Protocol):
    """A resource that a flow gives to its stages: the engine of a service, started when first needed."""

    def endpoint(self, service: Service) -> Endpoint:
        """The live endpoint of `service`; starts the engine as its record says if it is not up."""
        ...

    def last_words(self) -> LastWords:
        """Of the engine that was started last, and has ended or hangs."""
        ...
