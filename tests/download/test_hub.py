"""Fetching from a hub that is honest, damaged, slow, moving, or not there."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from day0.deadline import Deadline
from day0.errors import InputError, StageTimeout, Unavailable
from day0.files import sha256_file
from day0.progress import Progress, listening
from day0.verdict import Verdict
from tasks.download.fetch import fetch, pin
from tasks.download.manifest import recorded
from tasks.download.verify import verify_folder
from tests.hub import LocalHub
from tests.models.tiny import make_tiny_llama

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    (root / "modeling_tiny.py").write_text("import os")
    return root


def downloads(hub: LocalHub, name: str) -> int:
    return sum(request.startswith("GET") and request.endswith(name) for request in hub.requests)


def test_a_release_is_fetched_once_and_checked_whole(hub: LocalHub, model: Path) -> None:
    commit = hub.push("acme/tiny", model)
    heard: list[Progress] = []
    with listening("download", heard.append):
        snapshot = fetch("acme/tiny")
    assert (snapshot.verdict, snapshot.revision, snapshot.source) == (Verdict.PASS, commit, "hf:acme/tiny")
    assert (snapshot.digests_from, snapshot.tensors) == ("hub", 21)
    place = Path(snapshot.location)
    for file in snapshot.files:
        assert (place / file.name).read_bytes() == (model / file.name).read_bytes()
    assert {path.name for path in place.iterdir()} == {file.name for file in snapshot.files}
    assert [(warning.kind, warning.file) for warning in snapshot.warnings] == [("unsafe_file", "modeling_tiny.py")]
    assert not downloads(hub, "modeling_tiny.py")
    assert heard

    hub.requests.clear()
    assert fetch(f"hf:acme/tiny@{commit}") == snapshot
    assert hub.requests == []  # a commit never changes
    assert verify_folder(place, recorded(place)).digests_from == "hub"

    content = bytearray((place / SHARD).read_bytes())
    content[-1] ^= 1
    (place / SHARD).write_bytes(content)  # this disk damages it: noticed, and fetched again
    assert fetch(f"hf:acme/tiny@{commit}") == snapshot
    assert hub.requests == [f"GET /acme/tiny/resolve/{commit}/{SHARD}"]


def test_a_revision_stays_what_it_was_pinned_to(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    first = hub.push("acme/tiny", model)
    pinned = pin("acme/tiny")
    other = make_tiny_llama(tmp_path / "other", seed=1)
    second = hub.push("acme/tiny", other)
    assert first != second
    old = fetch(pinned.source, pinned)
    assert (old.verdict, old.revision) == (Verdict.PASS, first)
    assert (Path(old.location) / SHARD).read_bytes() == (model / SHARD).read_bytes()
    assert pin("acme/tiny").revision == second


def test_a_damaged_file_is_fetched_again_once(hub: LocalHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.corrupt(SHARD, times=1)
    snapshot = fetch("acme/tiny")
    assert snapshot.verdict is Verdict.PASS
    assert (Path(snapshot.location) / SHARD).read_bytes() == (model / SHARD).read_bytes()
    assert downloads(hub, SHARD) == 2


def test_a_file_that_stays_damaged_is_a_fault_with_both_digests(hub: LocalHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.corrupt(SHARD)
    snapshot = fetch("acme/tiny")
    assert snapshot.verdict is Verdict.FAIL
    assert [(fault.kind, fault.file) for fault in snapshot.faults] == [("digest", SHARD)]
    assert sha256_file(model / SHARD) in snapshot.faults[0].detail
    assert snapshot.location.endswith(".partial")  # never under the name of a checked release

    hub.troubles.clear()
    assert fetch("acme/tiny").verdict is Verdict.PASS


def test_a_cut_connection_is_continued(hub: LocalHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.cut(SHARD, times=2)
    assert fetch("acme/tiny").verdict is Verdict.PASS
    assert downloads(hub, SHARD) == 3


def test_what_is_not_there_or_not_allowed(hub: LocalHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    with pytest.raises(InputError, match="there is no repository acme/none"):
        fetch("acme/none")
    with pytest.raises(InputError, match="has no revision 'v9'"):
        fetch("acme/tiny@v9")
    hub.gate("acme/tiny")
    with pytest.raises(InputError, match="is gated; accept its terms"):
        fetch("acme/tiny")


def test_a_hub_that_is_down(hub: LocalHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/tiny", model)
    hub.error("/api/models/acme/tiny", 503)
    with pytest.raises(Unavailable, match="does not answer for acme/tiny"):
        fetch("acme/tiny")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 does not answer"):
        fetch("acme/tiny")


@pytest.mark.parametrize("stalled", ["downloading", f"fetching {SHARD} again"])
def test_a_deadline_ends_a_stalled_download_and_leaves_nothing_running(
    hub: LocalHub, model: Path, stalled: str
) -> None:
    hub.push("acme/tiny", model)
    if stalled != "downloading":
        hub.corrupt(SHARD, times=1)
    hub.stall(SHARD)
    limit = Deadline("download", 600)
    timers: list[threading.Timer] = []

    def stop_when_stalled(progress: Progress) -> None:
        if progress.what == stalled and not timers:
            timers.append(threading.Timer(0.5, limit.end, [StageTimeout("download took too long")]))
            timers[0].start()

    with pytest.raises(StageTimeout), limit.running(), listening("download", stop_when_stalled):
        fetch("acme/tiny")
    assert timers
    deadline = time.monotonic() + 20
    while children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children()


def children() -> list[str]:
    """Transfers that this process started."""
    found = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if "tasks.download.transfer" in line]


def test_a_hub_that_names_files_outside_the_folder_is_refused(
    hub: LocalHub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push("acme/tiny", model)
    commit = hub.repositories["acme/tiny"].commits[-1]
    commit.files["../../evil"] = commit.files["config.json"]
    with pytest.raises(InputError, match="unusable name"):
        fetch("acme/tiny")


def test_the_local_hub_lists_models_and_notices_uploads(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.url)
    hub.push("acme/tiny", model, only=["config.json"])
    first = api.model_info("acme/tiny")
    assert [file.rfilename for file in first.siblings or []] == ["config.json"]
    (hub.root / "acme" / "tiny" / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    hub.push("other/tiny", model)
    assert api.model_info("acme/tiny").sha != first.sha
    assert [found.id for found in api.list_models(author="acme", sort="last_modified")] == ["acme/tiny"]
    assert {found.id for found in api.list_models()} == {"acme/tiny", "other/tiny"}
    assert len(api.list_repo_commits("acme/tiny")) == 2
