"""Blocks that are shared instead of copied, on real file systems in a loop file."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.reshard.reflink import BLOCK, supports_reflink
from tasks.reshard.writer import write_files
from tasks.reshard.writes import Piece, Stream, TargetFile, WritePlan
from tests.reshard.random_plans import Case, make_case

MAKE = {
    "xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"],
    "xfs without": ["mkfs.xfs", "-q", "-m", "reflink=0"],
    "btrfs": ["mkfs.btrfs", "-q"],
}


def mounted(kind: str, folder: Path) -> Path:
    """A new file system of 400 MB, mounted."""
    image, place = folder / "image", folder / "mounted"
    image.touch()
    os.truncate(image, 400 << 20)
    place.mkdir()
    subprocess.run([*MAKE[kind], str(image)], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    return place


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    place = mounted(request.param, tmp_path)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def split_in_two(case: Case) -> WritePlan:
    """The first half of each shard's bytes to one file and the rest to another, headers padded so that both align."""
    files: list[TargetFile] = []
    streams = {}
    for name, header in case.checkpoint.files.items():
        tensors = sorted(header.tensors.values(), key=lambda t: t.begin)
        halves = [tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]]
        streams[name] = ()
        for half in halves:
            begin, end = half[0].begin, half[-1].end
            padded = b"h" * (BLOCK + begin % BLOCK)
            number = len(files)
            files.append(TargetFile(f"{number}.safetensors", 0, padded, len(padded) + end - begin, ()))
            case.oracle[files[-1].name] = padded + (case.checkpoint.root / name).read_bytes()[begin:end]
            streams[name] += tuple(
                Stream((t,), (Piece(number, len(padded) + t.begin - begin, 0, 1, t.nbytes, t.nbytes),)) for t in half
            )
    return replace(case.plan, files=tuple(files), streams=streams, fills=())


def used(place: Path) -> int:
    os.sync()
    status = os.statvfs(place)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def shared_bytes(path: Path) -> int:
    """Bytes in extents that the file system itself says are shared."""
    told = subprocess.run(["filefrag", "-v", str(path)], capture_output=True, text=True, check=True).stdout
    block = int(re.findall(r"blocks? of (\d+) bytes", told)[0])
    lengths = [line.split(":")[3] for line in told.splitlines() if "shared" in line]
    return sum(int(length) * block for length in lengths)


@pytest.fixture
def large(sharing: Path) -> Case:
    case = make_case(sharing / "m", 4, shards=3, tensors=40, largest=6_000_000, shuffle=False)
    case.oracle.clear()
    os.sync()
    return case


@pytest.mark.reflink
@pytest.mark.parametrize("hashes", [True, False])
def test_runs_that_align_are_shared_not_copied(sharing: Path, large: Case, hashes: bool) -> None:
    assert supports_reflink(sharing)
    assert supports_reflink(sharing, large.checkpoint.path(next(iter(large.checkpoint.files))))
    plan = split_in_two(large)
    before = used(sharing)
    (sharing / "out").mkdir()
    taken = write_files(plan, large.checkpoint, sharing / "out", hashes=hashes)
    assert plan.bytes_written > 20_000_000
    assert used(sharing) - before < 0.1 * plan.bytes_written
    shared = sum(shared_bytes(sharing / "out" / file.name) for file in plan.files)
    assert shared > 0.95 * plan.bytes_written
    for name, content in large.oracle.items():
        assert (sharing / "out" / name).read_bytes() == content
    if hashes:
        assert taken.targets == {n: hashlib.sha256(content).hexdigest() for n, content in large.oracle.items()}


@pytest.mark.reflink
def test_what_is_written_later_into_the_source_stays_there(sharing: Path, large: Case) -> None:
    plan = split_in_two(large)
    (sharing / "out").mkdir()
    write_files(plan, large.checkpoint, sharing / "out")
    for name in large.checkpoint.files:
        shard = large.checkpoint.root / name
        shard.write_bytes(b"\0" * shard.stat().st_size)
    for name, content in large.oracle.items():
        assert (sharing / "out" / name).read_bytes() == content


@pytest.mark.reflink
@pytest.mark.parametrize("seed", range(5))
def test_what_does_not_align_is_copied(sharing: Path, seed: int) -> None:
    case = make_case(sharing / "m", seed, largest=400_000)
    for hashes in (True, False):
        (sharing / f"out-{hashes}").mkdir()
        write_files(case.plan, case.checkpoint, sharing / f"out-{hashes}", hashes=hashes)
        for name, content in case.oracle.items():
            assert (sharing / f"out-{hashes}" / name).read_bytes() == content


@pytest.mark.reflink
def test_space_that_sharing_does_not_need_is_not_asked_for(sharing: Path, large: Case) -> None:
    plan = split_in_two(large)
    free = os.statvfs(sharing).f_bavail * os.statvfs(sharing).f_frsize
    with (sharing / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - plan.bytes_written // 2)
    (sharing / "out").mkdir()
    write_files(plan, large.checkpoint, sharing / "out")
    assert all((sharing / "out" / name).read_bytes() == content for name, content in large.oracle.items())


@pytest.mark.reflink
def test_a_file_system_without_reflinks_says_so_and_copies(tmp_path: Path) -> None:
    place = mounted("xfs without", tmp_path)
    try:
        assert not supports_reflink(place)
        case = make_case(place / "m", 4, tensors=16, largest=400_000, shuffle=False)
        case.oracle.clear()
        plan = split_in_two(case)
        (place / "out").mkdir()
        write_files(plan, case.checkpoint, place / "out", hashes=False)
        assert all((place / "out" / name).read_bytes() == content for name, content in case.oracle.items())
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_who_cannot_share_is_asked_once_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(tmp_path / "m", 4, shards=3, tensors=40, largest=400_000, shuffle=False)
    case.oracle.clear()
    plan, asked = split_in_two(case), []

    def refuse(descriptor: int, *_: object) -> None:
        asked.append(descriptor)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("tasks.reshard.reflink.fcntl.ioctl", refuse)
    (tmp_path / "out").mkdir()
    write_files(plan, case.checkpoint, tmp_path / "out", hashes=False)
    assert len(asked) == len(case.checkpoint.files)
    assert all((tmp_path / "out" / name).read_bytes() == content for name, content in case.oracle.items())


def test_a_folder_that_cannot_be_written_to_shares_nothing(tmp_path: Path) -> None:
    assert not supports_reflink(tmp_path / "absent")
