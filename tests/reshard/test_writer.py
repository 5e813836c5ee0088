"""What the writer makes of a plan: the planned bytes, whatever the plan and the threads."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.errors import CheckFailed, InputError
from tasks.reshard import copying, shard_pass, writer
from tasks.reshard.convert import registry
from tasks.reshard.hashing import Helpers
from tasks.reshard.journal import Journal
from tasks.reshard.writer import Hashes, write_files
from tasks.reshard.writes import Conversion, Piece, Stream
from tests.reshard.random_plans import Case, digests, make_case, written


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
    long_row=st.sampled_from([16, 1 << 20]),
    batch=st.sampled_from([50, 8 << 20]),
    fan_out=st.sampled_from([None, elsewhere]),
)
def test_any_plan_is_carried_out_to_the_byte(
    seed: int,
    shards: int,
    shuffle: bool,
    hashes: bool,
    threads: int,
    block: int,
    long_row: int,
    batch: int,
    fan_out: Any,
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        for module in (writer, shard_pass):
            patch.setattr(module, "buffers_for", lambda threads: (block, 3 * threads + 2))
        patch.setattr(copying, "LONG_ROW", long_row)
        patch.setattr(copying, "BATCH", batch)
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


def test_without_hashes_they_copy_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, copiers = _copied_by_two(tmp_path, monkeypatch, lambda: None)
    write_files(case.plan, case.checkpoint, tmp_path / "out", hashes=False, threads=2)
    assert written(tmp_path / "out") == case.oracle
    assert len(copiers) == 2


def test_a_shard_that_another_thread_failed_to_copy_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    case, _ = _copied_by_two(tmp_path, monkeypatch, fail)
    with pytest.raises(InputError, match=os.strerror(errno.EIO)):
        write_files(case.plan, case.checkpoint, tmp_path / "out", hashes=False, threads=2, journal=tmp_path / "journal")
    assert not Journal(tmp_path / "journal").shards


def _copied_by_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: Callable[[], None]
) -> tuple[Case, list[int]]:
    """One shard whose thread waits at its first part until another thread has come, which then does `second`."""
    case = make_case(tmp_path / "m", 3, shards=1, tensors=40, shuffle=False)
    (tmp_path / "out").mkdir()
    copy, offer = copying.Copying._copy, Helpers.offer
    copiers, come = list[int](), threading.Event()

    def offer_to_idle(self: Helpers, work: Any) -> bool:
        limit = time.monotonic() + 30
        while not copiers and not self._idle and time.monotonic() < limit:
            time.sleep(0.001)
        return offer(self, work)

    def copy_together(self: Any, what: Any) -> None:
        first, other = not copiers, threading.get_ident() not in copiers
        if other:
            copiers.append(threading.get_ident())
        if first:
            assert come.wait(30)
        elif other:
            come.set()
            second()
        copy(self, what)

    monkeypatch.setattr(copying, "BATCH", 1000)
    monkeypatch.setattr(Helpers, "offer", offer_to_idle)
    monkeypatch.setattr(copying.Copying, "_copy", copy_together)
    return case, copiers


@pytest.mark.parametrize("why", [errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_the_kernel_cannot_copy_the_bytes_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    case = make_case(tmp_path / "m", 8)
    (tmp_path / "out").mkdir()

    def refuse(*_: object) -> int:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(copying.os, "copy_file_range", refuse)
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
