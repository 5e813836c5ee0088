"""What a session needs of an engine, however it runs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from day0.artifacts.service import LaunchSpec
from day0.endpoint import LastWords
from day0.engine_kernels import GIVEN
from day0.kernel_uses import USES, read_marks
from tasks.service import logs
from tasks.service.engine import EngineConfig

#: Seconds after which a kernel that has not answered hangs. Requests of the suites wait twice as long.
HANGING_SECONDS = 60.0
#: It is asked often while an engine is measured, and in a container each look is a process there.
SECONDS_BETWEEN_LOOKS = 20.0


class Handle(ABC):
    """A started engine. How it ended and what it last said are kept, since both are gone once it is removed."""

    def __init__(self, name: str, url: str, engine: EngineConfig) -> None:
        self.name, self.url = name, url
        self._engine = engine
        self._lock = threading.Lock()
        self._how: str | None = None
        self._last_words: list[str] | None = None
        self._last_marks: list[bytes] | None = None
        self._look_again = 0.0

    def ended(self) -> str | None:
        """None while it runs; else how it ended, such as `exit code 1` or `killed by SIGKILL`."""
        with self._lock:
            if self._how is None:
                self._how = self._look()
            return self._how

    def last_error(self) -> str:
        """The last error line of its own log."""
        with self._lock:
            lines = self._last_words if self._last_words is not None else self._log()
        return logs.last_error(lines, self._engine.log_prefix, self._engine.generic_errors)

    def stop(self) -> None:
        """End it and everything that it started; harmless when it has ended already."""
        with self._lock:
            if self._last_words is not None:
                return
            self._how = self._how or self._look() or "day0 stopped it"
            self._last_words, self._last_marks = self._log(), self._marks()
            self._remove()

    def last_words(self) -> LastWords:
        """How it ended, or where it hangs. A kernel is named where it is one alone that can be."""
        with self._lock:
            lines = self._last_words if self._last_words is not None else self._log()
            marks = self._last_marks if self._last_marks is not None else self._marks()
        kernels = {mark.kernel for mark in read_marks(marks)}
        stack = logs.fatal_stack(lines)
        kernel = logs.kernel_in(stack) or (kernels.pop() if len(kernels) == 1 else None)
        return LastWords(kernel, tuple(stack))

    def hanging(self) -> str | None:
        """One sentence if one of its processes is in an accepted kernel for longer than any takes, else None."""
        with self._lock:
            if self._last_marks is None and time.monotonic() < self._look_again:
                return None
            marks = self._last_marks if self._last_marks is not None else self._marks()
            self._look_again = time.monotonic() + SECONDS_BETWEEN_LOOKS
        longest = max(read_marks(marks), key=lambda mark: mark.seconds, default=None)
        if longest is None or longest.seconds < HANGING_SECONDS:
            return None
        return (
            f"engine {self.name} hangs: kernel {longest.kernel} has not answered a call of {longest.operator} for "
            f"{longest.seconds:.0f} s"
        )

    @abstractmethod
    def security(self) -> dict[str, Any]:
        """How it is fenced in, as the system tells it, not as it was asked for."""

    @abstractmethod
    def kernel_uses(self) -> list[bytes]:
        """What its processes have written about the kernels that it was given, a text each."""

    @abstractmethod
    def _marks(self) -> list[bytes]:
        """Of each of its processes the kernel that it is in, as `day0.kernel_uses.read_marks` takes it."""

    @abstractmethod
    def _look(self) -> str | None:
        """How it ended, as the system tells it now; None while it runs."""

    @abstractmethod
    def _log(self) -> list[str]:
        """The last lines of its log."""

    @abstractmethod
    def _remove(self) -> None:
        """End it, whatever state it is in, and forget its record."""


def diagnosis(handle: Handle) -> str | None:
    """One sentence if the engine has ended, else None."""
    how = handle.ended()
    return None if how is None else f"engine {handle.name} ended ({how}); its last error line: {handle.last_error()}"


def kernel_environment(spec: LaunchSpec, folder: str) -> dict[str, str]:
    """Variables that tell the kernels' plugin which kernels to use, and the folder to write to what becomes of them."""
    return {USES: folder, GIVEN: ",".join(kernel.name for kernel in spec.given)} if spec.kernels else {}


def launch(spec: LaunchSpec, engine: EngineConfig, name: str, run: str, keep: bool) -> Handle:
    """Start an engine, without waiting until it is ready.

    Args:
        name: what it is called in `$DAY0_HOME/engines/`, and its container's name.
        run: the run that it belongs to.
        keep: it outlives this process.

    Raises:
        Unavailable: its environment or the Docker daemon is not there.
    """
    if spec.runtime == "docker":
        from tasks.service.container import start_container

        return start_container(spec, engine, name, run, keep)
    from tasks.service.process import start_process

    return start_process(spec, engine, name, run, keep)
