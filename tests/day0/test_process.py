from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from day0 import deadline, process
from day0.errors import Cancelled, StageTimeout


def alive(mark: str) -> bool:
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, check=False).returncode == 0


def test_lines_come_as_they_are_printed_and_the_tail_is_kept() -> None:
    lines: list[str] = []
    tail = process.run([sys.executable, "-c", "print('a'); print('b')"], on_line=lines.append)
    assert lines == tail == ["a", "b"]


def test_a_failure_carries_the_code_and_the_last_line() -> None:
    with pytest.raises(process.ProcessFailed, match=r"ended with code 3: the reason") as caught:
        process.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"])
    assert caught.value.returncode == 3


def test_children_left_behind_are_ended_when_the_command_ends() -> None:
    process.run(["sh", "-c", "sleep 614 >/dev/null 2>&1 & exit 0"])
    assert not alive("sleep 614")


def test_a_deadline_ends_the_whole_group() -> None:
    with deadline.Deadline("it", 0.5).running(), pytest.raises(StageTimeout, match=r"longer than its limit of 0\.5 s"):
        process.run(["sh", "-c", "sleep 615 & sleep 615"])
    assert not alive("sleep 615")


def test_a_limit_of_its_own_is_not_the_stages() -> None:
    """Whichever is up first ends it, and is named."""
    with deadline.Deadline("it", 60).running() as stage:
        with pytest.raises(process.TimedOut, match=r"did not end in 0\.3 s"):
            process.run_within(0.3, ["sh", "-c", "sleep 617 & sleep 617"])
        stage.check()
    assert not alive("sleep 617")
    with deadline.Deadline("it", 0.3).running(), pytest.raises(StageTimeout, match=r"it took longer than its limit"):
        process.run_within(60, ["sleep", "618"])
    threading.Timer(0.3, deadline.cancel_all, ["interrupted by SIGINT"]).start()
    with deadline.Deadline("it", 60).running(), pytest.raises(Cancelled, match="SIGINT"):
        process.run_within(60, ["sleep", "618"])
    assert not alive("sleep 618")
    assert process.run_within(60, ["echo", "done"]) == ["done"]


def test_cancelling_ends_it_and_says_so() -> None:
    threading.Timer(0.5, deadline.cancel_all, ["interrupted by SIGINT"]).start()
    with deadline.Deadline("it", None).running(), pytest.raises(Cancelled, match="SIGINT"):
        process.run(["sleep", "616"])
    assert not alive("sleep 616")


def test_loops_that_do_not_block_can_ask() -> None:
    with deadline.Deadline("it", 0.1).running() as limit:
        time.sleep(0.3)
        with pytest.raises(StageTimeout):
            limit.check()
        assert limit.remaining() == 0


def test_an_error_of_the_body_stays_what_it_is_while_there_is_time() -> None:
    with pytest.raises(ZeroDivisionError), deadline.Deadline("it", 60).running():
        _ = 1 / 0


def test_outside_a_stage_there_is_no_limit() -> None:
    assert deadline.current().remaining() is None
    assert deadline.current().remaining(at_most=5) == 5


def test_a_lock_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    path, waited = tmp_path / "locks" / "a.lock", []

    def take() -> None:
        with deadline.file_lock(path, lambda: waited.append(1)):
            pytest.fail("it was held")

    with deadline.file_lock(path), deadline.Deadline("it", 1.5).running(), pytest.raises(StageTimeout):
        take()
    assert waited
    with deadline.file_lock(path, lambda: pytest.fail("it is free")):
        pass


def test_an_event_loop_ends_with_the_deadline() -> None:
    async def forever() -> None:
        await asyncio.sleep(600)

    with deadline.Deadline("it", 0.3).running(), pytest.raises(StageTimeout):
        deadline.run_async(forever())


def test_an_event_loop_gives_its_result() -> None:
    async def answer() -> int:
        return 42

    assert deadline.run_async(answer()) == 42


ORPHANS = """
import os
from day0 import process
script = "{0} & echo begun; {0}".format(os.environ["STARTED"])
process.run(["sh", "-c", script], on_line=lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_started_ends_with_a_parent_that_is_killed(sign: signal.Signals) -> None:
    """By SIGKILL it cannot end anything itself any more."""
    started = f"sleep 619.{os.getpid()}{sign.value}"  # that no other run of the tests on this machine starts
    env = os.environ | {"STARTED": started}  # its command line would be found, too
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "begun\n"
    assert alive(started)
    parent.send_signal(sign)
    parent.wait()
    ends = time.monotonic() + 20
    while alive(started) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not alive(started)
