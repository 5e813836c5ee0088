"""The engines that day0 started: one JSON file each under `$DAY0_HOME/engines/`, so that any later command can end
those whose owner is gone. Only what is recorded here, or carries day0's label, is ever touched."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from day0.artifacts.base import Frozen
from day0.artifacts.service import LaunchSpec
from day0.errors import InputError, Unavailable
from day0.files import write_json
from day0.home import home
from tasks.service import supervisor

log = logging.getLogger("day0.service")

#: How the names of engines' folders for temporary files begin. Nothing else is removed, whatever a record says.
TEMPORARY = "day0-engine-"
#: A killed process is gone within milliseconds, unless it is in the middle of a read or write.
KILL_SECONDS = 5.0


class ProcessId(Frozen):
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    started: int
    """Clock ticks between the machine's start and the process's (field 22 of /proc/PID/stat)."""
    host: str

    @property
    def alive(self) -> bool:
        """Whether it runs; of a process on another machine nothing is known, so it counts as alive."""
        return self.host != platform.node() or start_time(self.pid) == self.started

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The running process `pid`; None if there is none."""
        started = start_time(pid)
        return None if started is None else cls(pid=pid, started=started, host=platform.node())


class EngineRecord(Frozen):
    """A running engine. `supervisor` and `engine` are set for the process runtime, `container` for Docker."""

    name: str
    run: str
    owner: ProcessId
    keep: bool
    """Outlives its owner: `day0 serve` started it, `day0 stop` ends it."""
    url: str
    launch: LaunchSpec
    supervisor: ProcessId | None = None
    engine: ProcessId | None = None
    container: str | None = None
    log: str | None = None
    """File that the engine's output goes to; a container's output is with Docker."""
    temporary: str | None = None
    """The engine's own folder for temporary files; a container has its own."""

    @property
    def orphaned(self) -> bool:
        return not self.keep and not self.owner.alive


@dataclass(frozen=True)
class Stopped:
    name: str
    was_running: bool


def start_time(pid: int) -> int | None:
    """Start of a running process in clock ticks; None if there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(fields[18])


def myself() -> ProcessId:
    """The process that this code runs in."""
    me = ProcessId.of(os.getpid())
    if me is None:
        raise Unavailable("/proc does not show this process: day0 keeps track of engines through it")
    return me


def folder() -> Path:
    return home() / "engines"


def uses_folder(name: str) -> Path:
    """Where the processes of an engine write about the kernels that it was given."""
    return folder() / f"{name}.uses"


def status(name: str) -> dict[str, Any]:
    """What the supervisor of an engine has written last; empty before it has."""
    try:
        value: dict[str, Any] = json.loads((folder() / f"{name}.status").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return value


def save(record: EngineRecord) -> None:
    write_json(folder() / f"{record.name}.json", record.to_json())


def forget(name: str) -> None:
    """Remove the record and what lay beside it."""
    for suffix in (".json", ".status", ".log"):
        (folder() / f"{name}{suffix}").unlink(missing_ok=True)
    shutil.rmtree(uses_folder(name), ignore_errors=True)


def records() -> list[EngineRecord]:
    """Every recorded engine. A file that is no record (of another version of day0) is left alone, with a warning."""
    found = []
    for path in sorted(folder().glob("*.json")):
        try:
            found.append(EngineRecord.model_validate(json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            continue  # its owner has stopped it meanwhile
        except (ValidationError, ValueError) as error:
            log.warning("%s is no record of an engine and is left alone: %s", path, str(error).splitlines()[0])
    return found


def find(name: str) -> EngineRecord:
    """The recorded engine `name`.

    Raises:
        InputError: there is none; the message lists those that there are.
    """
    there = records()
    for record in there:
        if record.name == name:
            return record
    names = ", ".join(record.name for record in there) or "none"
    raise InputError(f"no engine named {name!r} was started by day0; running: {names}")


def stop(record: EngineRecord) -> Stopped:
    """End a recorded engine and forget it.

    Raises:
        Unavailable: it runs on another machine, or the Docker daemon is not there.
    """
    if record.container is not None:
        from tasks.service.container import remove_container

        was_running = remove_container(record.container, record.name)
    else:
        was_running = _end_processes(record)
    forget(record.name)
    return Stopped(record.name, was_running)


def reap() -> list[str]:
    """End the engines whose owner is gone, and return their names."""
    reaped = []
    for record in records():
        if record.orphaned:
            log.warning("ending %s: the process that started it is gone", record.name)
            try:
                stop(record)
            except Unavailable as error:
                log.warning("%s stays for now: %s", record.name, error)
                continue
            reaped.append(record.name)
    return reaped


def _end_processes(record: EngineRecord) -> bool:
    """Ask the supervisor to end the engine; if it is gone, kill what is left of the engine's group, and remove what
    that leaves.

    Raises:
        Unavailable: it runs on another machine.
    """
    grace = 30.0
    watcher, engine = record.supervisor, record.engine
    if watcher is not None and watcher.host != platform.node():
        raise Unavailable(f"engine {record.name} runs on {watcher.host}: stop it there")
    running = any(process is not None and process.alive for process in (watcher, engine))
    if watcher is not None and watcher.alive:
        os.kill(watcher.pid, signal.SIGTERM)
        _wait(lambda: not watcher.alive, grace)
        if watcher.alive:
            os.kill(watcher.pid, signal.SIGKILL)
    if engine is not None:
        for member in _group(engine):
            _kill(member)
        _wait(lambda: not _group(engine), KILL_SECONDS)
    _remove_leftovers(record)
    return running


def _remove_leftovers(record: EngineRecord) -> None:
    """What the supervisor removes, unless it was killed itself."""
    if record.temporary is not None and Path(record.temporary).name.startswith(TEMPORARY):
        shutil.rmtree(record.temporary, ignore_errors=True)
    supervisor.remove_shared(status(record.name).get("shared", {}))


def _wait(done: Callable[[], bool], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not done() and time.monotonic() < ends:
        time.sleep(0.05)


def _group(engine: ProcessId) -> list[int]:
    """What is left of the group that an engine's first process led. A number that has been given to another process
    since, or a group younger than the engine, is none of ours."""
    if engine.host != platform.node() or start_time(engine.pid) not in (None, engine.started):
        return []
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            in_group = os.getpgid(pid) == engine.pid
        except ProcessLookupError:
            continue  # it has ended meanwhile
        if in_group and (started := start_time(pid)) is not None and started >= engine.started:
            members.append(pid)
    return members


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended meanwhile
