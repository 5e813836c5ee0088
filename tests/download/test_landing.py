"""Reading a release while it is still being fetched: each byte once, and hashed by whoever reads it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from day0.artifacts.snapshot import Snapshot
from day0.deadline import Deadline
from day0.errors import CheckFailed, EvidenceMissing, StageTimeout, Unavailable
from day0.files import sha256_file
from day0.hash_cache import Claim, FileChanged, HashCache, claim
from day0.landing import Landing, arriving, partial
from day0.verdict import Verdict
from tasks.download import arrivals, hashes
from tasks.download.fetch import fetch, survey
from tasks.download.hashes import hash_file, hash_files
from tests.download.builder import ONE, TWO
from tests.hub import LocalHub

pytestmark = pytest.mark.usefixtures("listed")


def read_along(landing: Landing, names: list[str]) -> list[tuple[str, str, bool]]:
    """Read every shard as it lands. For each: its name, its digest, and whether all others had landed by then."""
    seen = []
    with landing.follow():
        for name in names:
            path = landing.wait_for(name)
            others = all((path.parent / other).exists() for other in names)
            with claim(path) as reading:
                digest = hashlib.sha256()
                while data := os.read(reading.descriptor, 1 << 20):
                    digest.update(data)
                seen.append((name, reading.known or reading.record(digest.hexdigest()), others))
            assert seen[-1][1] == landing.digests[name]
    return seen


@contextmanager
def fetching(source: str) -> Iterator[None]:
    """A fetch in another thread, which must end well."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(fetch, source)
        yield
        snapshot: Snapshot = future.result()
        assert snapshot.verdict is Verdict.PASS


@pytest.mark.parametrize("listed", [False, True], ids=["http", "client"], indirect=True)
def test_a_shard_is_read_while_the_next_arrives_and_no_byte_twice(
    hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/large", large)
    surveyed = survey("acme/large")
    read_by_download: list[Path] = []
    real = hash_file
    monkeypatch.setattr(arrivals, "hash_file", lambda path, **_: read_by_download.append(path) or real(path))
    readv = os.readv
    bytes_read = [0]

    def counting(descriptor: int, buffers: list[bytearray]) -> int:
        bytes_read[0] += (count := readv(descriptor, buffers))
        return count

    monkeypatch.setattr(hashes.os, "readv", counting)
    hub.slow(TWO, 1.5e6)
    with landing_followed(surveyed) as follower, fetching("acme/large"):
        seen = read_along(follower, [ONE, TWO])
    assert seen == [(ONE, sha256_file(large / ONE), False), (TWO, sha256_file(large / TWO), True)]
    assert not read_by_download
    assert bytes_read[0] < 10_000  # the small files: of the shards the download read nothing


@contextmanager
def landing_followed(surveyed: Snapshot) -> Iterator[Landing]:
    """As a flow does that will reshard: the follower is announced before the download begins."""
    found = Landing.of(surveyed)
    promise = found.follow()
    try:
        yield found
    finally:
        promise.close()


def test_a_promise_that_nobody_keeps_does_not_hold_the_download_up(
    hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/large", large)
    monkeypatch.setattr(arrivals, "FOLLOWER_PATIENCE", 0.5)
    monkeypatch.setattr("tasks.download.direct.HashCache.put", lambda *_: None)  # as if hashing was left to it
    with Landing.of(survey("acme/large")).follow():
        assert fetch("acme/large").verdict is Verdict.PASS


@pytest.mark.parametrize("listed", [True], indirect=True)
def test_a_slow_reader_is_waited_for_while_it_reads(
    hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/large", large)
    monkeypatch.setattr(arrivals, "FOLLOWER_PATIENCE", 0.5)
    hashed: list[str] = []
    real = Claim.record
    monkeypatch.setattr(Claim, "record", lambda self, digest: hashed.append(self.path.name) or real(self, digest))
    found = Landing.of(survey("acme/large"))
    with (
        found.follow(),
        fetching("acme/large"),
        claim(found.wait_for(ONE)) as one,
        claim(found.wait_for(TWO)) as two,
    ):
        time.sleep(2)
        for reading, name in ((one, ONE), (two, TWO)):
            reading.record(sha256_file(large / name))
    assert hashed.count(ONE) == hashed.count(TWO) == 1


def test_a_whole_release_lands_at_once(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    surveyed, snapshot = survey("acme/large"), fetch("acme/large")
    for found in (Landing.of(snapshot), Landing.of(surveyed), Landing.of(survey(f"dir:{large}"))):
        assert found.wait_for(ONE).read_bytes() == (large / ONE).read_bytes()
    with claim(Path(snapshot.location) / ONE) as reading:
        assert reading.known == sha256_file(large / ONE)  # the folder has another name since it was hashed


def test_a_failed_download_is_told_to_those_who_wait(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    found = Landing.of(survey("acme/large"))
    hub.error(f"/resolve/.*{ONE}", 500)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(found.wait_for, ONE)
        with pytest.raises(Unavailable):
            fetch("acme/large")
        with pytest.raises(EvidenceMissing, match=rf"{ONE} was not fetched: .*{ONE} cannot be fetched: it answers"):
            waiting.result()


def test_a_release_that_stays_damaged_is_told_too(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    found = Landing.of(survey("acme/large"))
    hub.corrupt(ONE)
    assert fetch("acme/large").verdict is Verdict.FAIL
    with pytest.raises(EvidenceMissing, match=rf"verdict fail: {ONE}: its sha256 is"):
        found.wait_for(ONE)


def test_nobody_fetches(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    found = Landing.of(survey("acme/large"))
    with pytest.raises(EvidenceMissing, match=r"was not fetched: no download to .* is running"):
        found.wait_for(ONE)
    with pytest.raises(EvidenceMissing, match="was not surveyed"):
        found.wait_for("model-00003-of-00003.safetensors")


def test_whoever_waits_may_give_up(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)

    def give_up(_seconds: float) -> None:
        raise CheckFailed("another shard is damaged")

    with pytest.raises(CheckFailed, match="another shard"):
        Landing.of(survey("acme/large")).wait_for(ONE, give_up)


def test_waiting_ends_with_the_stage(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    found = Landing.of(survey("acme/large"))
    with pytest.raises(StageTimeout), Deadline("reshard", 0.3).running():
        found.wait_for(ONE)


def test_settling_is_waiting_until_nobody_fetches(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    found = Landing.of(survey("acme/large"))
    found.settle()  # nobody does
    begun, ended = threading.Event(), threading.Event()

    def fetching() -> None:
        with arriving(found.folder):
            begun.set()
            ended.wait(10)

    thread = threading.Thread(target=fetching)
    thread.start()
    begun.wait(10)
    with pytest.raises(StageTimeout), Deadline("reshard", 0.3).running():
        found.settle()
    ended.set()
    found.settle()
    thread.join()


def test_a_file_with_another_header_than_was_surveyed(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    found = Landing.of(survey("acme/large"))
    place = partial(found.folder)
    place.mkdir()
    (place / ONE).write_bytes((large / ONE).read_bytes().replace(b"model.a", b"model.c", 1))
    with pytest.raises(CheckFailed, match=f"{ONE} has not the header that the hub sent before"):
        found.wait_for(ONE)


def test_one_reads_and_the_others_wait_for_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100_000)
    digest = sha256_file(file)
    monkeypatch.setattr(hashes.os, "readv", lambda *_: pytest.fail("it was read a second time"))
    with ThreadPoolExecutor(2) as pool:
        with claim(file) as reading:
            others = [pool.submit(hash_files, [file]) for _ in range(2)]
            assert not any(other.done() for other in others)
            assert reading.known is None
            reading.record(digest)
        assert [other.result() for other in others] == [{file: digest}] * 2


def test_a_digest_goes_with_the_file_and_not_with_its_name(tmp_path: Path) -> None:
    cache = HashCache(tmp_path / "hashes.sqlite")
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "file"
    file.write_bytes(b"abc")
    cache.put(file, file.stat(), "12" * 32)
    (tmp_path / "a").rename(tmp_path / "b")
    assert cache.get((tmp_path / "b" / "file").stat()) == "12" * 32
    times = (tmp_path / "b" / "file").stat()
    (tmp_path / "b" / "file").write_bytes(b"abd")
    os.utime(tmp_path / "b" / "file", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cache.get((tmp_path / "b" / "file").stat()) is None


def test_a_file_that_changes_while_it_is_read_gets_no_digest(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    with claim(file) as reading:
        file.write_bytes(b"abcd")
        with pytest.raises(FileChanged, match="changed while it was read"):
            reading.record("12" * 32)
