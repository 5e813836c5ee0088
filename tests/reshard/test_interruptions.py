"""A reshard that is interrupted, in whatever way, keeps what is verified and comes to the same bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from day0 import deadline
from day0.errors import InputError, StageTimeout
from tasks.reshard import shard_pass, targets, writer
from tasks.reshard.journal import Journal
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.shard_pass import ShardPass
from tasks.reshard.writer import Hashes, write_files
from tests.reshard.killing import case_in
from tests.reshard.random_plans import Case, digests, make_case, written


class Took:
    """Which shards were taken, and what happens after the first `calm` of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.trouble: BaseException | None = None
        self.calm = 0
        self.recorded = 0
        run, add = ShardPass.run, Journal.add

        def recorded(this: Journal, result: Any) -> None:
            add(this, result)
            self.recorded += 1

        def counted(this: ShardPass) -> Any:
            if self.trouble and len(self.names) >= self.calm:
                while self.recorded < self.calm:  # others are still being synced
                    time.sleep(0.001)
                raise self.trouble
            self.names.append(this.job.name)
            return run(this)

        patch.setattr(ShardPass, "run", counted)
        patch.setattr(Journal, "add", recorded)


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> Took:
    return Took(monkeypatch)


def reshard(case: Case, destination: Path, **options: Any) -> Hashes:
    with resumable_folder(destination, plan_key(case.plan, case.checkpoint)) as partial:
        return write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal, **options)


def interrupt(case: Case, destination: Path, took: Took, calm: int = 2) -> Path:
    """Stop a run after some shards; returns the partial folder."""
    took.trouble, took.calm = OSError(errno.ENOSPC, "No space left on device"), calm
    with pytest.raises(InputError, match=r"No space left on device .*what is done is kept in"):
        reshard(case, destination, threads=1)
    assert not destination.exists()
    took.trouble = None
    took.names.clear()
    (partial,) = (path for path in destination.parent.iterdir() if path.name.endswith(".partial"))
    return partial


def test_an_interrupted_run_goes_on_from_what_is_verified(tmp_path: Path, took: Took) -> None:
    case = make_case(tmp_path / "m", 21, shards=5)
    interrupt(case, tmp_path / "out", took)
    taken = reshard(case, tmp_path / "out", threads=1)
    assert took.names == list(case.checkpoint.files)[2:]
    assert written(tmp_path / "out") == case.oracle
    assert taken.sources == digests(case)
    assert taken.targets == {name: hashlib.sha256(data).hexdigest() for name, data in case.oracle.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "out"]


def test_interrupted_after_the_last_shard_nothing_is_read_again(tmp_path: Path, took: Took) -> None:
    case = make_case(tmp_path / "m", 22)
    with pytest.raises(KeyboardInterrupt), resumable_folder(tmp_path / "out", "0" * 64) as partial:
        first = write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal)
        (partial.root / ".config.json.xyz.tmp").write_text("half a fi")
        raise KeyboardInterrupt
    took.names.clear()
    with resumable_folder(tmp_path / "out", "0" * 64) as partial:
        again = write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal)
    assert took.names == []
    assert again == first
    assert written(tmp_path / "out") == case.oracle


def test_a_source_that_changed_between_the_runs_is_read_again(tmp_path: Path, took: Took) -> None:
    case = make_case(tmp_path / "m", 23, shards=4)
    interrupt(case, tmp_path / "out", took, calm=3)
    shard = case.checkpoint.root / list(case.checkpoint.files)[1]
    shard.write_bytes(shard.read_bytes())
    reshard(case, tmp_path / "out", threads=1)
    assert took.names == [list(case.checkpoint.files)[n] for n in (1, 3)]
    assert written(tmp_path / "out") == case.oracle


def test_a_written_file_that_was_tampered_with_is_made_again(tmp_path: Path, took: Took) -> None:
    case = make_case(tmp_path / "m", 24, shards=4)
    destination = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), resumable_folder(destination, "1" * 64) as partial:
        write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal)
        (partial.root / case.plan.files[0].name).write_bytes(b"\0" * case.plan.files[0].nbytes)
        (partial.root / case.plan.files[1].name).unlink()
        raise KeyboardInterrupt
    with resumable_folder(destination, "1" * 64) as partial:
        write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal)
    assert written(destination) == case.oracle


def test_hashes_that_an_earlier_run_left_out_are_taken(tmp_path: Path, took: Took) -> None:
    case = make_case(tmp_path / "m", 25)
    with pytest.raises(KeyboardInterrupt), resumable_folder(tmp_path / "out", "2" * 64) as partial:
        write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal, hashes=False)
        raise KeyboardInterrupt
    with resumable_folder(tmp_path / "out", "2" * 64) as partial:
        taken = write_files(case.plan, case.checkpoint, partial.root, journal=partial.journal)
    assert taken.sources == digests(case)


@pytest.mark.parametrize("tear", [1, 5, 40])
def test_a_torn_last_line_of_the_journal_is_ignored(tmp_path: Path, took: Took, tear: int) -> None:
    case = make_case(tmp_path / "m", 26, shards=4)
    journal = interrupt(case, tmp_path / "out", took, calm=2) / "journal"
    journal.write_bytes(journal.read_bytes()[:-tear])
    reshard(case, tmp_path / "out", threads=1)
    assert len(took.names) == (2 if tear == 1 else 3)  # a line without its newline is whole
    assert written(tmp_path / "out") == case.oracle


@pytest.mark.parametrize(
    "line", [b"[]", b"7", b'{"shard": 3}', b'{"target": "x", "state": 1}', b"\xff\xfe", b'{"shard": "x", "states": []}']
)
def test_a_journal_with_nonsense_in_it_does_no_harm(tmp_path: Path, took: Took, line: bytes) -> None:
    case = make_case(tmp_path / "m", 27)
    journal = interrupt(case, tmp_path / "out", took, calm=1) / "journal"
    journal.write_bytes(line + b"\n" + journal.read_bytes() + line)
    reshard(case, tmp_path / "out")
    assert written(tmp_path / "out") == case.oracle


def test_another_plan_never_goes_on_from_this_one(tmp_path: Path, took: Took) -> None:
    case, other = make_case(tmp_path / "m", 28), make_case(tmp_path / "n", 29)
    left = interrupt(case, tmp_path / "out", took)
    key = plan_key(case.plan, case.checkpoint)
    assert left.name == f".out.{key[:16]}.partial"
    assert key == plan_key(case.plan, case.checkpoint)
    moved = replace(case.plan, fills=(replace(case.plan.fills[0], pattern=b"other"), *case.plan.fills[1:]))
    assert len({key, plan_key(moved, case.checkpoint), plan_key(other.plan, other.checkpoint)}) == 3
    reshard(other, tmp_path / "out")
    assert written(tmp_path / "out") == other.oracle
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "n", "out"]


def test_nothing_verified_nothing_kept(tmp_path: Path, took: Took) -> None:
    case = make_case(tmp_path / "m", 30)
    took.trouble = EOFError("a shard was changed")
    with pytest.raises(InputError, match="a shard was changed; try again"):
        reshard(case, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_disk_fills_up_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(tmp_path / "m", 31, shards=1, tensors=20)
    real, calls = os.pwrite, iter(range(100))

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if next(calls) > len(case.plan.files) + 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(targets.os, "pwrite", pwrite)
    with pytest.raises(InputError, match=r"No space left on device while [\d,]+ bytes were being written; make space"):
        reshard(case, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_disk_too_small_is_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(tmp_path / "m", 32)
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(InputError, match=r"not enough space for .*1,000 are free"):
        reshard(case, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_deadline_ends_every_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(tmp_path / "m", 33, shards=4)
    (tmp_path / "out").mkdir()
    feed = shard_pass.FileHash.feed
    monkeypatch.setattr(shard_pass.FileHash, "feed", lambda *args: (time.sleep(0.2), feed(*args))[1])
    with pytest.raises(StageTimeout), deadline.Deadline("reshard", 0.3).running():
        write_files(case.plan, case.checkpoint, tmp_path / "out", threads=3)
    assert not any(thread.is_alive() for thread in threading.enumerate() if thread.name.startswith("reshard-"))


def test_ctrl_c_ends_every_thread_and_keeps_what_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(tmp_path / "m", 34, shards=6)
    run, started = ShardPass.run, threading.Semaphore(0)

    def slow(this: ShardPass) -> Any:
        started.release()
        time.sleep(0.1)
        return run(this)

    def press() -> None:
        for _ in range(3):
            started.acquire()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ShardPass, "run", slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        reshard(case, tmp_path / "out", threads=1)
    finger.join()
    signal.signal(signal.SIGINT, before)
    assert not any(thread.is_alive() for thread in threading.enumerate() if thread.name.startswith("reshard-"))
    (left,) = tmp_path.glob(".out.*.partial")
    assert (left / "journal").exists()
    reshard(case, tmp_path / "out")
    assert written(tmp_path / "out") == case.oracle


def test_killed_twenty_times_at_random_moments_gives_the_same_bytes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.reshard.killing", str(tmp_path / "k"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["killed"] == 20
    assert told["resumable"] > 0
    oracle = case_in(tmp_path / "again").oracle
    for number in range(told["rounds"]):
        found = written(tmp_path / "k" / f"out-{number}")
        hashes = json.loads(found.pop("hashes.json"))
        assert found == oracle
        assert hashes == {name: hashlib.sha256(data).hexdigest() for name, data in oracle.items()}
    # A kill between the last rename and the clearing up leaves hidden names, and nothing else.
    left = {path.name for path in (tmp_path / "k").iterdir() if not path.name.startswith(".")}
    assert left == {"model", *(f"out-{number}" for number in range(told["rounds"]))}
