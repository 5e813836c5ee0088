"""Files over connections that break, lie and stall. Each fault is one that people met; the right bytes or an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from day0.deadline import Deadline
from day0.errors import InputError, StageTimeout, Unavailable
from day0.files import sha256_file
from day0.hash_cache import HashCache
from day0.landing import partial
from day0.release import parse_source
from day0.verdict import Verdict
from tasks.download import client, direct, hashes, parallel
from tasks.download.fetch import fetch, pin
from tasks.download.hub import folder_of
from tasks.download.source import HubRelease
from tests.download.builder import ONE, TWO
from tests.hub import LocalHub

pytestmark = pytest.mark.usefixtures("listed")


def assert_fetched(release: Path, source: str = "acme/large") -> None:
    snapshot = fetch(source)
    assert snapshot.verdict is Verdict.PASS
    place = Path(snapshot.location)
    assert {path.name: sha256_file(path) for path in place.iterdir()} == {
        path.name: sha256_file(path) for path in release.iterdir()
    }
    assert not list(place.parent.glob("*.begun"))


def gets(hub: LocalHub, name: str) -> int:
    return sum(request.startswith("GET") and request.endswith(name) for request in hub.requests)


def test_what_is_broken_off_is_continued_where_it_was(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.cut(ONE, times=1)
    hub.reset(TWO, times=1)
    assert_fetched(large)
    assert gets(hub, ONE) == gets(hub, TWO) == 2
    assert hub.sent < 1.4 * sum(path.stat().st_size for path in large.iterdir())


def test_a_server_without_ranges_starts_again(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.ranges = False
    hub.cut(ONE, times=2)
    assert_fetched(large)


def test_an_error_page_as_a_good_answer(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.page(ONE, times=2)
    assert_fetched(large)


def test_an_error_page_for_ever(hub: LocalHub, large: Path) -> None:
    commit = hub.push("acme/large", large)
    hub.page(ONE)
    with pytest.raises(Unavailable, match=rf"{ONE} cannot be fetched: it sends a file of 635 bytes"):
        fetch("acme/large")
    place = partial(folder_of(parse_source("acme/large"), commit))
    assert (place / TWO).is_file()  # the others are kept, and it never had the name of the file
    assert not (place / ONE).exists()


def test_a_busy_server_is_waited_for_as_it_asks(hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/large", large)
    waited: list[float] = []
    monkeypatch.setattr(direct.time, "sleep", waited.append)
    hub.error(ONE, 429, times=1, Retry_After="7")
    hub.error("config.json", 502, times=1)
    assert_fetched(large)
    assert sorted(waited) == [direct.FIRST_PAUSE, 7]


def test_a_server_that_stays_away(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.error(f"/resolve/.*{ONE}", 500)
    with pytest.raises(Unavailable, match=rf"{ONE} cannot be fetched: it answers 500"):
        fetch("acme/large")
    assert gets(hub, ONE) == direct.ATTEMPTS


def test_a_refusal_ends_the_fetch_before_other_files_are_begun(
    hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/large", large)
    monkeypatch.setattr(parallel, "CONNECTIONS", 1)
    hub.error("/resolve/.*config.json", 403)
    with pytest.raises(InputError, match="refused to this account"):
        fetch("acme/large")
    assert not gets(hub, ONE)


def test_an_interrupted_fetch_is_continued_by_the_next(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.stall(ONE)
    with pytest.raises(StageTimeout), Deadline("download", 1).running():
        fetch("acme/large")
    hub.troubles.clear()
    hub.sent = 0
    assert_fetched(large)
    assert 0 < hub.sent < (large / ONE).stat().st_size  # half of it lay there, and all of the other


def test_what_was_begun_and_was_damaged_since_is_fetched_from_the_start(hub: LocalHub, large: Path) -> None:
    commit = hub.push("acme/large", large)
    folder = folder_of(parse_source("acme/large"), commit)
    begun = folder.with_name(f"{commit}.begun")
    begun.mkdir(parents=True)
    (begun / ONE).write_bytes(b"x" * 1000)
    (begun / TWO).write_bytes(b"x" * 9_000_000)
    assert_fetched(large)


def test_a_flipped_byte_is_named_with_both_digests_and_keeps_no_name(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.corrupt(ONE)
    hub.corrupt("tokenizer.json")
    snapshot = fetch("acme/large")
    assert snapshot.verdict is Verdict.FAIL
    assert [(fault.kind, fault.file) for fault in snapshot.faults] == [("digest", ONE), ("digest", "tokenizer.json")]
    assert f"the hub says {sha256_file(large / ONE)}" in snapshot.faults[0].detail
    content = bytearray((large / ONE).read_bytes())
    content[-1] ^= 1
    (large.parent / "flipped").write_bytes(content)
    assert sha256_file(large.parent / "flipped") in snapshot.faults[0].detail
    assert not (Path(snapshot.location) / ONE).exists()
    assert gets(hub, ONE) == 1 + direct.DAMAGED_ATTEMPTS
    assert gets(hub, TWO) == 1


def test_no_byte_is_read_again_to_verify(hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/large", large)
    monkeypatch.setattr(hashes.os, "readv", lambda *_: pytest.fail("a file was read to be hashed"))
    assert fetch("acme/large").verdict is Verdict.PASS


# The way of Xet, by the hub's own client. (The client falls back to plain HTTP, since this hub has no Xet.)


@pytest.mark.parametrize("listed", [True], indirect=True)
def test_what_the_client_brings_is_hashed_and_what_it_damages_comes_another_way(hub: LocalHub, large: Path) -> None:
    commit = hub.push("acme/large", large)
    hub.corrupt(ONE, times=1)
    assert_fetched(large)
    assert gets(hub, ONE) == 2
    shard = folder_of(parse_source("acme/large"), commit) / TWO
    assert HashCache().get(shard.stat()) == sha256_file(large / TWO)


@pytest.mark.parametrize("listed", [True], indirect=True)
def test_a_client_that_fails_is_not_the_only_way(hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/large", large)

    def transfer(release: HubRelease, names: list[str], folder: Path) -> None:
        raise Unavailable("its storage does not answer")

    monkeypatch.setattr(client, "transfer", transfer)
    monkeypatch.setattr("tasks.download.hub.time.sleep", lambda _: None)
    assert_fetched(large)


# Disks that are too small.


def test_too_little_space_is_said_before(hub: LocalHub, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/large", large)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(InputError, match=r"4,\d{3},\d{3} bytes are to be fetched, but only 1,000,000 are free"):
        fetch("acme/large")
    assert not gets(hub, ONE)


@pytest.mark.parametrize("way", ["http", "client"])
def test_a_disk_that_fills_up_midway_ends_cleanly(hub: LocalHub, large: Path, way: str) -> None:
    commit = hub.push("acme/large", large)
    code = (
        "import dataclasses, resource, sys\n"
        "from tasks.download import client\n"
        "from tasks.download.fetch import fetch\n"
        "real = client.look_up\n"
        f"client.look_up = lambda *a: dataclasses.replace(real(*a), by_client={way == 'client'})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "try:\n"
        "    fetch('acme/large')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.stdout.startswith("InputError File too large while the release was being fetched"), ended
    assert "make room, or set DAY0_HOME" in ended.stdout
    assert ended.stdout.count("\n") == 1
    place = partial(folder_of(parse_source("acme/large"), commit))
    assert not (place / ONE).exists()
    hub.sent = 0
    assert_fetched(large)
    if way == "http":
        assert hub.sent < 3.5e6  # of two shards of 2 MiB a megabyte each was kept


@pytest.mark.mount
def test_a_tmpfs_that_is_full(hub: LocalHub, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=True)
    try:
        hub.push("acme/large", large)
        monkeypatch.setenv("DAY0_HOME", str(disk))
        monkeypatch.setattr("tasks.download.hub.need_space", lambda *_: None)  # as if others filled it meanwhile
        pinned = pin("acme/large")
        with pytest.raises(InputError, match="No space left on device while the release was being fetched"):
            fetch("acme/large", pinned)
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        hub.sent = 0
        assert fetch("acme/large", pinned).verdict is Verdict.PASS
        assert hub.sent < 3e6
    finally:
        subprocess.run(["umount", disk], check=True)
