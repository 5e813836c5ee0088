"""HTTP clients whose blocked calls really end when the stage's time does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx

from day0 import deadline


@contextmanager
def http_client(**options: Any) -> Iterator[httpx.Client]:
    """An `httpx.Client` with these options, ended by the current deadline.

    Closing a client does not wake a thread that waits for its answer; shutting its sockets down does. httpcore's
    trace hook hands them over as they are connected.
    """
    sockets: list[socket.socket] = []

    def remember(event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "connect_unix_socket.complete")):
            sockets.append(info["return_value"].get_extra_info("socket"))
            deadline.current().check()

    def trace(request: httpx.Request) -> None:
        request.extensions = {**request.extensions, "trace": remember}

    def end() -> None:
        for connection in list(sockets):
            with suppress(OSError):  # it was closed already
                connection.shutdown(socket.SHUT_RDWR)

    with httpx.Client(**options, event_hooks={"request": [trace]}) as client, deadline.current().guard(end):
        yield client
