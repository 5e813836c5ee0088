"""Subprocesses that end when their stage's time does, or day0 itself, with everything that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from day0 import deadline
from day0.deadline import Deadline
from day0.errors import Cancelled, Day0Error, StageTimeout

TAIL_LINES = 200

#: Kills a process group when its standard input is closed without a word.
_WATCH = 'read -r ended || kill -s KILL -- "-$1"'


class ProcessFailed(Day0Error):
    """A subprocess ended with an error; `tail` holds the last lines that it printed."""

    def __init__(self, command: Sequence[str], returncode: int, tail: list[str]) -> None:
        last = next((line for line in reversed(tail) if line.strip()), "it printed nothing")
        super().__init__(f"{Path(command[0]).name} ended with code {returncode}: {last.strip()}")
        self.returncode = returncode
        self.tail = tail


class TimedOut(Day0Error):
    """Work did not end within a limit of its own; the stage's time was not up."""


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


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process that leads its own group, for the body: all of the group is ended with it, and killed if day0 ends
    without a chance to (by SIGKILL, or for want of memory).

    A shell reads from a pipe whose other end the kernel closes, however we end. (PR_SET_PDEATHSIG would reach the first
    process alone, and set it before exec, where threads make Python unsafe.)
    """
    watch: subprocess.Popen[bytes] | None = None
    try:
        watch = subprocess.Popen(
            ["sh", "-c", _WATCH, "sh", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        yield
    finally:
        end_group(process)
        if watch:
            watch.communicate(b"ended\n")


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
        with _ended(process), deadline.current().guard(lambda: end_group(process)):
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip("\n")
                tail = [*tail[-TAIL_LINES:], line]
                if on_line:
                    on_line(line)
            returncode = process.wait()
    finally:
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
    with within(seconds, Path(command[0]).name):
        return run(command, cwd=cwd, env=env, on_line=on_line)


@contextmanager
def within(seconds: float | None, name: str) -> Iterator[None]:
    """A limit of the body's own, within the stage's: the current deadline of the body. None: only the stage's counts.

    Raises:
        TimedOut: the body did not end in `seconds`.
        StageTimeout, Cancelled: the stage's time was up before.
    """
    outer, own = deadline.current(), Deadline(name, seconds)
    try:
        with outer.guard(lambda: own.end(Cancelled("the stage ended"))), own.running():
            yield
    except StageTimeout as error:
        outer.check()
        raise TimedOut(f"it did not end in {seconds:g} s") from error
