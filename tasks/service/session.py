"""A live engine that a flow lends to its stages: started when first needed, always stopped at the end."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from day0.artifacts.service import FirstCompletion, LaunchSpec, Service
from day0.endpoint import Endpoint, EngineDied, LastWords
from day0.errors import Unavailable
from tasks.service import registry
from tasks.service.engine import load_engine
from tasks.service.environment import prepare
from tasks.service.launch import check_launch
from tasks.service.readiness import NotReady, wait_until_ready
from tasks.service.runtime import Handle, diagnosis, launch

log = logging.getLogger("day0.service")

#: Measured: vLLM's API server goes about 4 s after its engine core.
DYING_SECONDS = 5.0


@dataclass(frozen=True)
class Started:
    """An engine that has answered a completion."""

    name: str
    endpoint: Endpoint
    ready_seconds: float
    first_completion: FirstCompletion
    security: dict[str, Any]


class EngineSession:
    """At most one engine at a time. A context manager: whatever ends the body, the engine is stopped.

    With `keep` the engine outlives the session and the process (`day0 serve`).
    """

    def __init__(self, run: str, *, keep: bool = False) -> None:
        self._run, self._keep = run, keep
        self._lock = threading.RLock()
        self._handle: Handle | None = None
        self._last: Handle | None = None
        self._spec: LaunchSpec | None = None

    def start(self, spec: LaunchSpec) -> Started:
        """Start the engine in the place of the one that runs, and wait until it has answered a completion.

        Raises:
            CheckFailed: the folder cannot be served (found before anything is started).
            EngineDied: it ended while it started; the message has its own last error line.
            NotReady: it answered no completion in time.
            Unavailable: its environment or the Docker daemon is not there.
        """
        with self._lock:
            self.stop()
            registry.reap()
            check_launch(spec)
            engine = load_engine(spec.engine)
            began = time.monotonic()
            self._last = handle = launch(spec, engine, _name(spec), self._run, self._keep)
            try:
                first = wait_until_ready(handle, spec.served_model_name, spec.ready_timeout)
                seconds = time.monotonic() - began
                security = handle.security()
            except NotReady as error:
                hangs = handle.hanging()
                handle.stop()
                raise (EngineDied(hangs) if hangs else error) from None
            except BaseException:
                handle.stop()
                raise
            self._handle, self._spec = handle, spec
            log.info("engine %s is ready after %.1f s at %s", handle.name, seconds, handle.url)
            return Started(handle.name, _endpoint(handle, spec), seconds, first, security)

    def endpoint(self, service: Service) -> Endpoint:
        """The live endpoint of `service`; started from its record if no engine of it is up.

        Raises:
            EngineDied: it was up and has ended; it is not started again silently.
        """
        with self._lock:
            if self._handle is not None and self._spec == service.launch:
                if died := diagnosis(self._handle):
                    raise EngineDied(died)
                return _endpoint(self._handle, service.launch)
            started = self.start(_restored(service.launch))
            self._spec = service.launch
            return started.endpoint

    def last_words(self) -> LastWords:
        """Of the engine that was started last, and has ended or hangs."""
        with self._lock:
            return self._last.last_words() if self._last else LastWords()

    def stop(self) -> None:
        """Stop the engine, if one is up."""
        with self._lock:
            handle, self._handle, self._spec = self._handle, None, None
            if handle is not None:
                log.info("stopping engine %s", handle.name)
                handle.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._keep or kind is not None:
            self.stop()


def _endpoint(handle: Handle, spec: LaunchSpec) -> Endpoint:
    if spec.kernels is None:
        return Endpoint(handle.url, spec.served_model_name, lambda: _diagnosis_soon(handle))

    return Endpoint(
        handle.url,
        spec.served_model_name,
        lambda: diagnosis(handle) or handle.hanging() or _diagnosis_soon(handle),
        handle.kernel_uses,
    )


def _diagnosis_soon(handle: Handle) -> str | None:
    """How the engine ended. It is asked when a connection broke, which is a little before the engine is gone."""
    ends = time.monotonic() + DYING_SECONDS
    while (sentence := diagnosis(handle)) is None and time.monotonic() < ends:
        time.sleep(0.2)
    return sentence


def _name(spec: LaunchSpec) -> str:
    """A name for people, unique on this machine, and fit for a file and a container."""
    model = re.sub(r"[^a-z0-9]+", "-", spec.served_model_name.lower()).strip("-")[:40]
    return f"{model or 'model'}-{uuid.uuid4().hex[:6]}"


def _restored(spec: LaunchSpec) -> LaunchSpec:
    """A recorded launch, with its environment made again if it is gone.

    Raises:
        Unavailable: the environment would not be the recorded one.
    """
    if spec.runtime == "process" and Path(spec.environment).is_dir():
        return spec
    prepared = prepare(spec.engine, spec.runtime)
    if prepared.lock_digest != spec.lock_digest:
        raise Unavailable(
            "the environment that the service ran in is gone, and images/ has changed since: rerun from service"
        )
    return spec.model_copy(update={"environment": prepared.environment})
