"""Subprocesses that end when their stage's time does, with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from day0 import deadline
from day0.deadline import Deadline
from day0.errors import Cancelled, Day0Error, StageTimeout

TAIL_LINES = 200


class ProcessFailed(Day0Error):
    """A subprocess ended with an error; `tail` holds the last lines that it printed."""

    def __init__(self, command: Sequence[str], returncode: int, tail: list[str]) -> None:
        last = next((line for line in reversed(tail) if line.strip()), "it printed nothing")
        super().__init__(f"{Path(command[0]).name} ended with code {returncode}: {last.strip()}")
        self.returncode = returncode
        self.tail = tail


class TimedOut(Day0Error):
    """A subprocess did not end within its own limit; the stage's time was not up."""


def end_group(process: subprocess.Popen[bytes], grace: float = 5.0) -> None:
    """End a process that leads its own group, and all of the group: SIGTERM, then SIGKILL after `grace` s."""
    for sign, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        ends = time.monotonic() + wait
        while time.monotonic() < ends:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except (ProcessLookupError, PermissionError):
                return
            time.sleep(0.05)


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:
    """Run a command to its end and return the last lines that it printed (both streams).

    `on_line` is told each line as it comes. `env` replaces the environment.

    Raises:
        ProcessFailed: it ended with another code than 0.
        StageTimeout, Cancelled: the current stage's time was up; the whole process group is gone.
    """
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    tail: list[str] = []
    assert process.stdout is not None
    try:
        with deadline.current().guard(lambda: end_group(process)):
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                tail = [*tail[-TAIL_LINES:], line]
                if on_line:
                    on_line(line)
            returncode = process.wait()
    finally:
        end_group(process)
        process.stdout.close()
        process.wait()
    if returncode:
        raise ProcessFailed(command, returncode, tail)
    return tail


def run_within(
    seconds: float,
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:
    """`run` for at most `seconds`: what hangs by itself is told from a stage whose time is up.

    Raises:
        ProcessFailed: as `run`.
        TimedOut: it did not end in `seconds`; the whole process group is gone.
        StageTimeout, Cancelled: the stage's time was up before.
    """
    outer, own = deadline.current(), Deadline(Path(command[0]).name, seconds)
    try:
        with outer.guard(lambda: own.end(Cancelled("the stage ended"))), own.running():
            return run(command, cwd=cwd, env=env, on_line=on_line)
    except StageTimeout as error:
        outer.check()
        raise TimedOut(f"it did not end in {seconds:g} s") from error
