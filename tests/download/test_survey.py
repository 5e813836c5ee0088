"""A release before its weights are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.checkpoint import open_checkpoint
from day0.errors import CheckFailed, EvidenceMissing, InputError, Unavailable
from day0.files import sha256_file
from day0.verdict import Verdict
from tasks.download.fetch import fetch, pin, survey
from tasks.download.manifest import recorded
from tasks.download.survey import MARKER
from tasks.download.verify import verify_folder
from tests.download.builder import ONE, TWO
from tests.download.conftest import write_large
from tests.hub import LocalHub

pytestmark = pytest.mark.usefixtures("listed")


def test_headers_and_small_files_come_without_the_weights(hub: LocalHub, large: Path) -> None:
    commit = hub.push("acme/large", large)
    found = survey("acme/large", pin("acme/large"))
    assert hub.sent < 1 << 20
    assert (found.verdict, found.complete, found.revision, found.tensors) == (Verdict.PASS, False, commit, 2)
    assert {check.name: check.verdict for check in found.checks}["digests"] is Verdict.SKIPPED
    assert {file.name: file.sha256 for file in found.files} == {
        path.name: sha256_file(path) for path in large.iterdir()
    }  # of the shards it is what the hub states
    surveyed, real = open_checkpoint(Path(found.location)), open_checkpoint(large)
    assert (surveyed.config, surveyed.tensors) == (real.config, real.tensors)
    assert surveyed.files == real.files  # as large as they will be
    assert (Path(found.location) / ONE).stat().st_blocks * 512 < 64 << 10
    assert found.bytes == sum(path.stat().st_size for path in large.iterdir())
    with pytest.raises(EvidenceMissing, match="holds only the headers of acme/large"):
        found.require_weights()
    assert found.lands == fetch("acme/large").location


def test_a_survey_passes_no_verification(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    place = Path(survey("acme/large").location)
    report = verify_folder(place, recorded(place))
    assert report.verdict is Verdict.FAIL
    assert ("incomplete_download", MARKER) in [(fault.kind, fault.file) for fault in report.faults]


def test_a_survey_is_made_once_and_needs_no_hub_when_the_release_is_there(hub: LocalHub, large: Path) -> None:
    commit = hub.push("acme/large", large)
    first = survey("acme/large")
    inode = (Path(first.location) / ONE).stat().st_ino
    assert survey("acme/large") == first
    assert (Path(first.location) / ONE).stat().st_ino == inode
    fetch("acme/large")
    (Path(first.location) / "config.json").write_text("{}")  # damaged: made anew, from the release
    hub.requests.clear()
    assert survey(f"acme/large@{commit}") == first
    assert (Path(first.location) / "config.json").read_bytes() == (large / "config.json").read_bytes()
    assert hub.requests == []


@pytest.mark.parametrize("padding", [0, 300_000])
def test_a_server_without_ranges_is_cut_off_early(hub: LocalHub, tmp_path: Path, padding: int) -> None:
    hub.push("acme/padded", write_large(tmp_path / "padded", 40 << 20, padding))
    hub.ranges = False
    hub.slow("safetensors", 32e6)  # so that what is on its way when the connection is closed is little
    found = survey("acme/padded")
    assert found.verdict is Verdict.PASS
    assert hub.sent < 40 << 20
    assert (
        (Path(found.location) / ONE)
        .read_bytes()[: 100 + padding]
        .startswith((tmp_path / "padded" / ONE).read_bytes()[: 60 + padding])
    )


def test_a_header_longer_than_the_first_range(hub: LocalHub, tmp_path: Path) -> None:
    hub.push("acme/padded", write_large(tmp_path / "padded", 2 << 20, padding=600_000))
    found = survey("acme/padded")
    assert open_checkpoint(Path(found.location)).files == open_checkpoint(tmp_path / "padded").files


def test_passing_trouble_is_waited_for(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.error(ONE, 429, times=1, Retry_After="0")
    hub.error(TWO, 503, times=2)
    hub.cut("tokenizer.json", times=1)
    hub.page("config.json", times=1)
    hub.reset("index.json", times=1)
    assert survey("acme/large").verdict is Verdict.PASS


def test_a_wrong_small_file_is_named_with_both_digests(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.corrupt("config.json")
    with pytest.raises(CheckFailed, match=r"config.json of acme/large: its git sha1 is [0-9a-f]{40}, the hub says"):
        survey("acme/large")
    assert not list((hub.root.parent / "home" / "models" / "acme" / "large").glob("*.survey"))


def test_an_error_page_in_place_of_a_shard(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    hub.page(ONE)
    with pytest.raises(Unavailable, match="it sends a file of 635 bytes, the hub lists"):
        survey("acme/large")


def test_what_the_headers_say_wrong_is_told_before_the_download(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large, only=[ONE, "model.safetensors.index.json", "config.json"])
    found = survey("acme/large")
    assert found.verdict is Verdict.FAIL
    assert [(fault.kind, fault.file) for fault in found.faults] == [("missing_shard", TWO)]


@pytest.mark.parametrize(
    ("begin", "fault"),
    [
        ((1 << 63).to_bytes(8, "little"), "header"),
        ((90_000_000).to_bytes(8, "little"), "header"),
        (b"<!DOCTYPE html>", "header"),
        (b"version https://git-lfs.github.com/spec/v1", "header"),
    ],
)
def test_a_shard_that_does_not_begin_as_one(
    hub: LocalHub, large: Path, tmp_path: Path, begin: bytes, fault: str
) -> None:
    release = write_large(tmp_path / "odd", 2 << 20)
    (release / ONE).write_bytes(begin + (release / ONE).read_bytes()[len(begin) :])
    hub.push("acme/odd", release)
    found = survey("acme/odd")
    assert [(entry.kind, entry.file) for entry in found.faults][:1] == [(fault, ONE)]
    assert hub.sent < 1 << 20  # whatever length it states


def test_a_release_whose_names_cannot_be_files_together(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    commit = hub.repositories["acme/large"].commits[-1]
    commit.files["config.json/more.json"] = commit.files["config.json"]
    for bring in (survey, fetch):
        with pytest.raises(InputError, match=r"config.json.* cannot be written: "):
            bring("acme/large")


def test_a_refused_release(hub: LocalHub, large: Path) -> None:
    hub.push("acme/large", large)
    pinned = pin("acme/large")
    hub.error("/resolve/.*config.json", 403)
    with pytest.raises(InputError, match="refused to this account"):
        survey("acme/large", pinned)


def test_the_survey_of_a_folder_hashes_nothing(hub: LocalHub, large: Path) -> None:
    found = survey(f"dir:{large}", pin(f"dir:{large}"))
    assert (found.verdict, found.complete, found.tensors, found.files) == (Verdict.PASS, False, 2, ())
    assert found.lands == found.location == str(large)
