"""Runs one engine and ends it, with everything that it started, when its owner is gone.

day0 starts this file as a process of its own (`python supervisor.py …`) and holds the other end of its standard
input: when day0 ends, by whatever signal, the kernel closes that end, and the engine's whole process group is killed.
What a killed engine cannot remove is removed for it: its folder for temporary files, and its shared memory.
It imports nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL = 0.1
#: Seconds between two looks for shared memory that is new.
LOOK = 2.0
SHARED = Path("/dev/shm")


def _die_with_parent() -> None:
    """In the engine, before exec: its first process is killed if this supervisor is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _write_status(path: str, value: dict[str, Any]) -> None:
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(temporary, path)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # it has ended meanwhile


class SharedMemory:
    """The segments of POSIX shared memory that are an engine's own: made after its start, and mapped by its processes.

    Nothing else tells whose they are: their names are random, and outlive a process that is killed.
    """

    def __init__(self) -> None:
        self._before = _segments()
        self.found: dict[str, int] = {}
        """Name → inode."""

    def look(self, group: int) -> bool:
        """Whether the group's processes map some that were not known."""
        new = _segments() - self._before - set(self.found.items())
        if not new:
            return False
        mapped = set().union(*(_mapped(process) for process in _processes() if _group_of(process) == group))
        self.found.update(new & mapped)
        return bool(new & mapped)


def remove_shared(found: dict[str, int]) -> None:
    """Remove an engine's segments, once it has ended; not those that another process has mapped."""
    left = set(found.items()) & _segments()
    if left:
        left -= set().union(*(_mapped(process) for process in _processes()))
    for name, _ in left:
        (SHARED / name).unlink(missing_ok=True)


def _segments() -> set[tuple[str, int]]:
    """Names and inodes of this user's shared memory."""
    found = set()
    for path in SHARED.glob("*"):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue  # its owner has removed it meanwhile
        if stat.st_uid == os.getuid():
            found.add((path.name, stat.st_ino))
    return found


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _group_of(process: int) -> int | None:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None  # it has ended meanwhile


def _mapped(process: int) -> set[tuple[str, int]]:
    """Names and inodes of the shared memory that a process maps (proc(5): /proc/PID/maps)."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()  # it has ended meanwhile, or is another user's, who cannot map what only this user may open
    fields = (line.split(maxsplit=5) for line in lines if f"{SHARED}/" in line)
    return {(path.removeprefix(f"{SHARED}/"), int(inode)) for *_, inode, path in fields}


def _reap_adopted() -> None:
    """Collect processes of the engine that outlived their parent and are now this process's children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _end(engine: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM to the group, SIGKILL to what is left of it after `grace` seconds."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        _signal_group(engine.pid, number)
        ends = time.monotonic() + wait
        while time.monotonic() < ends:
            if engine.poll() is not None:
                _reap_adopted()
            if not _group_alive(engine.pid):
                return
            time.sleep(POLL / 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True)
    parser.add_argument("--status", required=True, help="JSON file: pid, shared, and exit_code once it has ended")
    parser.add_argument("--temporary", required=True, help="the engine's own folder, removed after it")
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("--keep", action="store_true", help="outlive whoever started it")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    asked_to_stop = False

    def on_signal(*_: object) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def tell(pid: int | None, code: int | None) -> None:
        _write_status(options.status, {"pid": pid, "exit_code": code, "shared": shared.found})

    shared = SharedMemory()
    with open(options.log, "ab", buffering=0) as log:
        try:
            engine = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            log.write(f"{type(error).__name__}: {error}\n".encode())
            tell(None, 127)
            shutil.rmtree(options.temporary, ignore_errors=True)
            return 127
    tell(engine.pid, None)

    watched, look_at = [] if options.keep else [sys.stdin], 0.0
    while engine.poll() is None and not asked_to_stop:
        readable, _, _ = select.select(watched, [], [], POLL)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + LOOK
            if shared.look(engine.pid):
                tell(engine.pid, None)
    code = engine.poll()
    shared.look(engine.pid)
    tell(engine.pid, code)  # at once: what an engine that has ended leaves behind may take the whole grace time to end
    _end(engine, options.grace)
    remove_shared(shared.found)
    shutil.rmtree(options.temporary, ignore_errors=True)
    tell(engine.pid, engine.wait())
    return 0


if __name__ == "__main__":
    sys.exit(main())
