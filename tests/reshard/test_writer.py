"""What the writer makes of a plan: the planned bytes whatever the plan, the threads and the interruptions."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0 import deadline
from day0.errors import CheckFailed, InputError, StageTimeout
from tasks.reshard import shard_pass, targets, writer
from tasks.reshard.convert import registry
from tasks.reshard.journal import Journal
from tasks.reshard.partial import Partial, plan_key, resumable_folder
from tasks.reshard.shard_pass import ShardPass
from tasks.reshard.writer import Hashes, write_files
from tasks.reshard.writes import Conversion, Piece, Stream
from tests.reshard.killing import case_in
from tests.reshard.random_plans import Case, make_case


def digests(case: Case) -> dict[str, str]:
    root = case.checkpoint.root
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in case.checkpoint.files}


def written(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def elsewhere(function: Callable[[Any], Any], jobs: Sequence[Any], each: Callable[[Any], None]) -> None:
    """Jobs and results go through pickle, as they do to another machine; the last job is done first."""
    for job in reversed(jobs):
        each(pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(job))))))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    shards=st.integers(1, 5),
    shuffle=st.booleans(),
    hashes=st.booleans(),
    threads=st.integers(1, 4),
    block=st.sampled_from([64, 100, 1000, 1 << 20]),
    fan_out=st.sampled_from([None, elsewhere]),
)
def test_any_plan_is_carried_out_to_the_byte(
    seed: int, shards: int, shuffle: bool, hashes: bool, threads: int, block: int, fan_out: Any
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        for module in (writer, shard_pass):
            patch.setattr(module, "buffers_for", lambda threads: (block, 3 * threads + 2))
        case = make_case(Path(scratch) / "m", seed, shards=shards, shuffle=shuffle)
        root = Path(scratch) / "out"
        root.mkdir()
        expected = digests(case)
        taken = write_files(case.plan, case.checkpoint, root, expected, hashes=hashes, threads=threads, fan_out=fan_out)
        assert written(root) == case.oracle
        if hashes:
            assert taken.sources == expected
            assert taken.targets == {name: hashlib.sha256(data).hexdigest() for name, data in case.oracle.items()}
        else:
            assert taken == Hashes({}, {}, {})


def test_threads_without_a_shard_of_their_own_hash_for_the_others(tmp_path: Path) -> None:
    case = make_case(tmp_path / "m", 3, shards=1, tensors=40, largest=1_000_000, shuffle=False)
    (tmp_path / "out").mkdir()
    taken = write_files(case.plan, case.checkpoint, tmp_path / "out", threads=4)
    assert written(tmp_path / "out") == case.oracle
    assert taken.sources == digests(case)
    assert taken.targets == {name: hashlib.sha256(data).hexdigest() for name, data in case.oracle.items()}


@pytest.mark.parametrize("why", [errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_the_kernel_cannot_copy_the_bytes_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    case = make_case(tmp_path / "m", 8)
    (tmp_path / "out").mkdir()

    def refuse(*_: object) -> int:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(shard_pass.os, "copy_file_range", refuse)
    write_files(case.plan, case.checkpoint, tmp_path / "out", hashes=False)
    assert written(tmp_path / "out") == case.oracle


def test_a_plan_with_a_hole_is_refused_before_a_byte_is_read(tmp_path: Path) -> None:
    case = make_case(tmp_path / "m", 1)
    (tmp_path / "out").mkdir()
    short = replace(case.plan, fills=case.plan.fills[1:])
    with pytest.raises(CheckFailed, match=r"rank-0000\d/model\.safetensors: .* bytes, but the plan brings"):
        write_files(short, case.checkpoint, tmp_path / "out")
    assert written(tmp_path / "out") == {}


# Conversions


class Doubling:
    """Each byte of the first input twice into output 0, and once, plus a scale's first byte, into output 1."""

    unit = 10

    def __init__(self, conversion: Conversion, inputs: tuple[Any, ...], read: Callable[[int, int, int], memoryview]):
        self.read, self.nbytes = read, inputs[0].nbytes
        self.memory = bytearray(2 * 4096)

    def convert(self, begin: int, data: memoryview) -> list[tuple[int, int, memoryview]]:
        assert begin % self.unit == 0
        assert len(data) % self.unit == 0 or begin + len(data) == self.nbytes
        twice = bytes(byte for byte in data for _ in range(2))
        added = bytes((byte + self.read(1, 0, 1)[0]) % 256 for byte in data)
        self.memory[: len(twice)] = twice  # the same memory each time, as the interface allows
        return [(0, 2 * begin, memoryview(self.memory)[: len(twice)]), (1, begin, memoryview(added))]

    def errors(self) -> dict[str, float]:
        return {"max_abs": 0.5}


@pytest.mark.parametrize("hashes", [True, False])
@pytest.mark.parametrize("block", [64, 4096])
@pytest.mark.parametrize("fan_out", [None, elsewhere])
def test_what_a_conversion_makes_is_split_like_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: bool, block: int, fan_out: Any
) -> None:
    for module in (writer, shard_pass):
        monkeypatch.setattr(module, "buffers_for", lambda threads: (block, 3 * threads + 2))
    monkeypatch.setattr(registry, "make_converter", Doubling)
    case = make_case(tmp_path / "m", 11, shards=2, tensors=5, largest=4000)
    tensors = sorted(case.checkpoint.tensors.values(), key=lambda t: -t.nbytes)
    first = tensors[0]
    scale = next(t for t in tensors if t.file != first.file and t.nbytes)
    content = (case.checkpoint.root / first.file).read_bytes()[first.begin : first.end]
    added = (case.checkpoint.root / scale.file).read_bytes()[scale.begin]
    rows, row = len(content) // 8, 16
    old = [s for s in case.plan.streams[first.file] if s.inputs[0] == first]
    streams = {name: tuple(s for s in ss if s not in old) for name, ss in case.plan.streams.items()}
    # Two files more: the first half of each row of what output 0 is, as rows of 16; and output 1 whole.
    number = len(case.plan.files)
    pieces = (
        Piece(number, 8, 0, rows, row // 2, row),
        Piece(number + 1, 8, 0, 1, len(content), len(content), output=1),
    )
    converted = Stream((first, scale), pieces, Conversion("double", ()))
    streams[first.file] = tuple(sorted([*streams[first.file], converted], key=lambda s: s.inputs[0].begin))
    twice = bytes(byte for byte in content for _ in range(2))
    halves = b"".join(twice[n * row : n * row + row // 2] for n in range(rows))
    sums = bytes((byte + added) % 256 for byte in content)
    kept = {number: file for number, file in enumerate(case.plan.files) if not _reached(old, number)}
    lost = {file.name for number, file in enumerate(case.plan.files) if number not in kept}
    files = [*case.plan.files]
    for data, name in ((halves, "halves"), (sums, "sums")):
        files.append(replace(files[0], name=name, header=b"header..", nbytes=8 + len(data)))
    # Files that the replaced stream went to lack its bytes now: leave them and all that goes to them out.
    numbers = {n: i for i, n in enumerate([*kept, number, number + 1])}
    streams = {
        name: tuple(
            s._replace(pieces=tuple(p._replace(target=numbers[p.target]) for p in s.pieces if p.target in numbers))
            for s in ss
        )
        for name, ss in streams.items()
    }
    fills = tuple(replace(f, target=numbers[f.target]) for f in case.plan.fills if f.target in numbers)
    plan = replace(case.plan, files=tuple(files[n] for n in numbers), streams=streams, fills=fills)
    oracle = {name: data for name, data in case.oracle.items() if name not in lost}
    oracle |= {"halves": b"header.." + halves, "sums": b"header.." + sums}
    (tmp_path / "out").mkdir()
    taken = write_files(plan, case.checkpoint, tmp_path / "out", hashes=hashes, fan_out=fan_out)
    assert written(tmp_path / "out") == oracle
    assert taken.errors == {first.name: {"max_abs": 0.5}}
    if hashes:
        assert taken.sources == digests(case)
        assert taken.targets == {name: hashlib.sha256(data).hexdigest() for name, data in oracle.items()}


def _reached(streams: list[Stream], number: int) -> bool:
    return any(piece.target == number and piece.nbytes for stream in streams for piece in stream.pieces)


# Sources that are not what they should be


@pytest.mark.parametrize("fan_out", [None, elsewhere])
def test_a_shard_that_is_not_the_recorded_one_is_named_with_both_digests(tmp_path: Path, fan_out: Any) -> None:
    case = make_case(tmp_path / "m", 2)
    (tmp_path / "out").mkdir()
    expected = digests(case)
    shard = case.checkpoint.root / list(case.checkpoint.files)[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(CheckFailed, match=f"{shard.name}: SHA-256 is {found}, but {expected[shard.name]}"):
        write_files(case.plan, case.checkpoint, tmp_path / "out", expected, fan_out=fan_out)


def test_a_shard_without_any_wanted_tensor_is_verified_too(tmp_path: Path) -> None:
    case = make_case(tmp_path / "m", 2)
    (tmp_path / "out").mkdir()
    nothing = replace(case.plan, files=(), streams={}, fills=())
    assert write_files(nothing, case.checkpoint, tmp_path / "out").sources == digests(case)


@pytest.mark.parametrize("change", ["grows", "shrinks", "is touched"])
def test_a_shard_that_changes_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    case = make_case(tmp_path / "m", 2, shards=1)
    (tmp_path / "out").mkdir()
    shard = case.checkpoint.root / next(iter(case.checkpoint.files))
    original = shard_pass.copied

    def copied(streams: Any) -> Any:
        if change == "grows":
            shard.write_bytes(shard.read_bytes() + b"more")
        elif change == "shrinks":
            os.truncate(shard, 100)
        else:
            os.utime(shard, ns=(1, 1))
        return original(streams)

    monkeypatch.setattr(shard_pass, "copied", copied)
    with pytest.raises(InputError, match=f"{shard.name} (was changed|became shorter) while it was read"):
        write_files(case.plan, case.checkpoint, tmp_path / "out")


def test_a_shard_shorter_than_its_header_said_is_an_error(tmp_path: Path) -> None:
    case = make_case(tmp_path / "m", 2, shards=1)
    (tmp_path / "out").mkdir()
    shard = case.checkpoint.root / next(iter(case.checkpoint.files))
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(InputError, match=f"{shard.name} has .* bytes, its header says"):
        write_files(case.plan, case.checkpoint, tmp_path / "out")


# Interruptions


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
    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        reshard(case, tmp_path / "out", threads=1)
    finger.join()
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


# The folder


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Partial]:
    with resumable_folder(tmp_path / "out", "a" * 64) as partial:
        yield partial


def test_two_runs_at_once_on_one_destination(tmp_path: Path, held: Partial) -> None:
    sentence = "another run is writing to .*out now"
    for key in ("a" * 64, "b" * 64):
        with pytest.raises(InputError, match=sentence), resumable_folder(tmp_path / "out", key):
            pytest.fail("it must not begin")
    with resumable_folder(tmp_path / "beside", "a" * 64) as other:
        assert other.root != held.root
    assert held.root.is_dir()


def test_a_folder_with_something_in_it_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(InputError, match="is not empty"), resumable_folder(tmp_path / "out", "0" * 64):
        pytest.fail("it must not begin")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_an_empty_folder_is_replaced_and_the_partial_one_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with resumable_folder(tmp_path / "out", "c" * 64, tmp_path / "store") as partial:
        assert partial.root.is_relative_to(tmp_path / "store")
        (partial.root / "file").write_text("x")
    assert (tmp_path / "out" / "file").read_text() == "x"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755
    assert list((tmp_path / "store").iterdir()) == []


def test_leftovers_of_a_destination_with_a_longer_name_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    other = tmp_path / f".out.two.{'d' * 16}.partial"
    other.mkdir()
    with resumable_folder(tmp_path / "out", "e" * 64):
        pass
    assert other.exists()


def test_a_link_in_place_of_the_partial_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trap").mkdir()
    (tmp_path / f".out.{'f' * 16}.partial").symlink_to(tmp_path / "trap")
    with pytest.raises(InputError, match="is in the way"), resumable_folder(tmp_path / "out", "f" * 64):
        pytest.fail("it must not begin")
    assert list((tmp_path / "trap").iterdir()) == []
