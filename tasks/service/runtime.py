"""What a session needs of an engine, however it runs."""

from __future__ import annotations

from typing import Any, Protocol

from day0.artifacts.service import LaunchSpec
from tasks.service.engine import EngineConfig


class Handle(Protocol):
    """A started engine."""

    name: str
    url: str

    def ended(self) -> str | None:
        """None while it runs; else how it ended, such as `exit code 1` or `killed by SIGKILL`."""
        ...

    def last_error(self) -> str:
        """The last error line of its own log."""
        ...

    def security(self) -> dict[str, Any]:
        """How it is fenced in, as the system tells it, not as it was asked for."""
        ...

    def stop(self) -> None:
        """End it and everything that it started; harmless when it has ended already."""
        ...


def diagnosis(handle: Handle) -> str | None:
    """One sentence if the engine has ended, else None."""
    how = handle.ended()
    return None if how is None else f"engine {handle.name} ended ({how}); its last error line: {handle.last_error()}"


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
