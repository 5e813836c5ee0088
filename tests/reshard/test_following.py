"""Shards that are split while they arrive: what is written is right only if the whole of what was read is."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from day0 import landing
from day0.architecture.slicing import Rank
from day0.checkpoint import open_checkpoint
from day0.errors import CheckFailed, EvidenceMissing
from day0.landing import Landing, arriving, begun_folder
from tasks.reshard import writer
from tasks.reshard.convert.registry import parameters
from tasks.reshard.journal import Journal
from tasks.reshard.writer import Hashes, write_files
from tasks.reshard.writes import Conversion, Piece, Stream, TargetFile, WritePlan
from tests.models.safetensors_file import write_file
from tests.reshard.random_plans import Case, digests, make_case, written


class Download:
    """A download in the test's hands, and a reshard in another thread that follows it."""

    def __init__(self, root: Path, source: Case) -> None:
        self.content = {name: source.checkpoint.path(name).read_bytes() for name in source.checkpoint.files}
        self.folder, self.out, self.journal = root / "models" / "commit", root / "out", root / "journal"
        surveyed = root / "surveyed"
        for folder in (surveyed, self.out, landing.partial(self.folder), begun_folder(self.folder)):
            folder.mkdir(parents=True)
        for name, header in source.checkpoint.files.items():
            (surveyed / name).write_bytes(self.content[name][: header.data_start])
            os.truncate(surveyed / name, header.file_bytes)
        self.expected = digests(source)
        self.case = Case(replace(source.checkpoint, root=surveyed), source.plan, source.oracle)
        self.landing = Landing(self.folder, surveyed, self.expected)
        self.running = ExitStack()
        self.running.enter_context(arriving(self.folder))
        self.pool = ThreadPoolExecutor(1)

    def follow(self, hashes: bool = True) -> Future[Hashes]:
        plan, checkpoint = self.case.plan, self.case.checkpoint
        follow = partial(write_files, hashes=hashes, threads=2, journal=self.journal, landing=self.landing)
        return self.pool.submit(follow, plan, checkpoint, self.out, self.expected)

    def grow(self, name: str, content: bytes) -> None:
        with (begun_folder(self.folder) / name).open("ab") as file:
            file.write(content)

    def land(self, name: str) -> None:
        os.replace(begun_folder(self.folder) / name, landing.partial(self.folder) / name)

    def close(self) -> None:
        self.running.close()
        self.pool.shutdown()


@pytest.fixture
def download(tmp_path: Path, begin: Callable[[Case], Download]) -> Download:
    return begin(make_case(tmp_path / "source", 5, shards=4, tensors=20, largest=400_000, shuffle=False))


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Case], Download]]:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(landing, "PATIENCE", 0.5)
    monkeypatch.setattr(writer, "buffers_for", lambda threads: (16 << 10, 3 * threads + 2))
    with ExitStack() as stack:

        def start(case: Case) -> Download:
            made = Download(tmp_path, case)
            stack.callback(made.close)
            return made

        yield start


def test_all_shards_are_split_while_all_of_them_arrive(download: Download) -> None:
    following, rng = download.follow(), random.Random(3)
    left = dict(download.content)
    while any(len(content) > 1 for content in left.values()):
        for name, content in left.items():
            count = min(len(content) - 1, rng.randint(1, 300_000))
            download.grow(name, content[:count])
            left[name] = content[count:]
    _wait_until(lambda: _right_bytes(download) > 0.9)  # though none of them is whole
    assert not Journal(download.journal).shards
    for name, content in left.items():
        download.grow(name, content)
        download.land(name)
    assert following.result(30).sources == download.expected
    assert written(download.out) == download.case.oracle
    states = {name: record.states[name] for name, record in Journal(download.journal).shards.items()}
    for name, state in states.items():
        status = (landing.partial(download.folder) / name).stat()
        assert state == (status.st_size, status.st_mtime_ns, status.st_ino)


@pytest.mark.parametrize("how", ["removed", "written anew"])
def test_what_came_of_a_damaged_shard_is_written_again(download: Download, how: str) -> None:
    following = download.follow()
    damaged, *others = download.content
    for name in others:
        download.grow(name, download.content[name])
        download.land(name)
    content = download.content[damaged]
    begin = download.case.checkpoint.files[damaged].data_start
    wrong = bytes(byte ^ 1 for byte in content[begin : len(content) // 2])
    download.grow(damaged, content[:begin] + wrong)
    _wait_until(lambda: len(Journal(download.journal).shards) == len(others))
    time.sleep(0.3)  # the damaged half is read
    if how == "removed":
        (begun_folder(download.folder) / damaged).unlink()
    else:  # as a server that knows no ranges has it: the same file, from its start
        os.truncate(begun_folder(download.folder) / damaged, 0)
        download.grow(damaged, content)
    with pytest.raises(CheckFailed, match=damaged):
        following.result(30)
    assert damaged not in Journal(download.journal).shards
    if how == "removed":
        download.grow(damaged, content)
    download.land(damaged)
    assert download.follow().result(30).sources == download.expected
    assert written(download.out) == download.case.oracle


def test_a_shard_that_is_cut_off_and_comes_again_the_same_is_read_on(download: Download) -> None:
    following = download.follow()
    for name, content in download.content.items():
        download.grow(name, content[: len(content) // 2])
    time.sleep(0.3)
    for name, content in download.content.items():
        os.truncate(begun_folder(download.folder) / name, 0)
        download.grow(name, content)
        download.land(name)
    assert following.result(30).sources == download.expected
    assert written(download.out) == download.case.oracle


def test_a_shard_with_another_header_than_was_surveyed_is_refused(download: Download) -> None:
    name = next(iter(download.content))
    surveyed = download.case.checkpoint.root / name
    content = bytearray(surveyed.read_bytes())
    content[8 + 3] ^= 1
    surveyed.write_bytes(content)
    following = download.follow()
    for other, whole in download.content.items():
        download.grow(other, whole)
    time.sleep(0.3)
    for other in download.content:
        download.land(other)
    with pytest.raises(CheckFailed, match=f"{name} has not the header"):
        following.result(30)


def test_a_shard_without_a_digest_is_waited_for(download: Download) -> None:
    name = next(iter(download.content))
    del download.expected[name]
    following = download.follow()
    for other, content in download.content.items():
        download.grow(other, content)
        if other != name:
            download.land(other)
    _wait_until(lambda: len(Journal(download.journal).shards) == len(download.content) - 1)
    time.sleep(0.3)
    assert name not in Journal(download.journal).shards
    download.land(name)
    following.result(30)
    assert written(download.out) == download.case.oracle


def test_without_hashes_shards_are_waited_for(download: Download) -> None:
    following = download.follow(hashes=False)
    for name, content in download.content.items():
        download.grow(name, content)
    time.sleep(0.3)
    assert not Journal(download.journal).shards
    for name in download.content:
        download.land(name)
    following.result(30)
    assert written(download.out) == download.case.oracle


@pytest.mark.parametrize("hashes", [True, False])
def test_shards_that_wait_for_their_scales_leave_the_others_memory(
    tmp_path: Path, begin: Callable[[Case], Download], hashes: bool
) -> None:
    """Each has a block in its hands and lacks the scales, which come last: more shards than there are blocks."""
    download = begin(_quantised(tmp_path / "source", shards=12))
    following = download.follow(hashes)
    for name, content in download.content.items():
        download.grow(name, content[:-4])
    time.sleep(1)
    for name, content in download.content.items():
        download.grow(name, content[-4:])
        download.land(name)
    following.result(30)
    assert written(download.out) == download.case.oracle


def _quantised(root: Path, shards: int) -> Case:
    """Shards with a weight in FP8 and its scale after it, all written as bf16 into one file."""
    root.mkdir()
    rows = 256
    described = {"w": ("F8_E4M3", (rows, rows)), "w_scale_inv": ("F32", (1, 1))}
    for number in range(shards):
        content = {f"{name}.{number}": value for name, value in described.items()}
        ones = bytes([0x38]) * (rows * rows)
        write_file(root / f"{number}.safetensors", content, [ones, struct.pack("<f", number + 1)])
    (root / "config.json").write_text("{}")
    index = {f"{name}.{number}": f"{number}.safetensors" for name in described for number in range(shards)}
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    checkpoint = open_checkpoint(root)
    conversion = Conversion("fp8_block_dequant", (("BF16", (rows, rows)),), parameters(block=(rows, rows)))
    size = 2 * rows * rows
    streams = {}
    for number in range(shards):
        inputs = tuple(checkpoint.tensors[f"{name}.{number}"] for name in described)
        streams[inputs[0].file] = (Stream(inputs, (Piece(0, number * size, 0, 1, size, size),), conversion),)
    target = TargetFile("rank-00000/model.safetensors", 0, b"", shards * size, ())
    ranks = (Rank(0, 0, 0, 0),)
    plan = WritePlan("hf", "none", 1, 1, 1, ranks, ((0, 1),), (target,), streams, (), ())
    oracle = b"".join(struct.pack("<f", number + 1)[2:] * (rows * rows) for number in range(shards))
    return Case(checkpoint, plan, {target.name: oracle})


def test_a_download_that_ends_in_the_middle_is_told(download: Download) -> None:
    following = download.follow()
    for name, content in download.content.items():
        download.grow(name, content[: len(content) // 2])
    time.sleep(0.2)
    download.running.close()
    with pytest.raises(EvidenceMissing, match="was not fetched"):
        following.result(30)


def _right_bytes(download: Download) -> float:
    """The share of the output that is as it will be."""
    found = written(download.out)
    oracle = download.case.oracle
    same = sum(a == b for name in found for a, b in zip(found[name], oracle[name], strict=False))
    return same / sum(map(len, oracle.values()))


def _wait_until(reached: Callable[[], bool], limit: float = 30.0) -> None:
    end = time.monotonic() + limit
    while not reached():
        assert time.monotonic() < end, "it did not come to this in time"
        time.sleep(0.05)
