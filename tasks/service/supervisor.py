"""Runs one engine and ends it, with everything that it started, when its owner is gone.

day0 starts this file as a process of its own (`python supervisor.py …`) and holds the other end of its standard
input: when day0 ends, by whatever signal, the kernel closes that end, and the engine's whole process group is killed.
It imports nothing but the standard library, so that it starts at once.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL = 0.1


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
    parser.add_argument("--status", required=True, help="JSON file: pid, and exit_code once the engine has ended")
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
            _write_status(options.status, {"pid": None, "exit_code": 127})
            return 127
    _write_status(options.status, {"pid": engine.pid, "exit_code": None})

    watched = [] if options.keep else [sys.stdin]
    while engine.poll() is None and not asked_to_stop:
        readable, _, _ = select.select(watched, [], [], POLL)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    if (code := engine.poll()) is not None:
        # Told at once; what it leaves behind may take the whole grace time to end.
        _write_status(options.status, {"pid": engine.pid, "exit_code": code})
    _end(engine, options.grace)
    _write_status(options.status, {"pid": engine.pid, "exit_code": engine.wait()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
