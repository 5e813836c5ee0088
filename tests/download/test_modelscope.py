"""Fetching from ModelScope by its own client, from a hub that is honest, damaged, moving, or not there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from day0.deadline import Deadline
from day0.errors import InputError, StageTimeout, Unavailable
from day0.files import sha256_file
from day0.home import PROJECT
from day0.progress import Progress, listening
from day0.verdict import Verdict
from tasks.download import modelscope
from tasks.download.fetch import fetch, pin
from tests.models.tiny import make_tiny_llama
from tests.modelscope_hub import ModelScopeHub

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")
    (root / "modeling_tiny.py").write_text("import os")
    (root / "assets").mkdir()
    (root / "assets" / "note 1.txt").write_text("a file in a folder, with a space in its name")
    return root


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelScopeHub]:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MODELSCOPE_HOME", str(tmp_path / "modelscope"))
    monkeypatch.setenv("MODELSCOPE_REPO_TREE_PAGE_MAX_ATTEMPTS", "1")
    for name in ("MODELSCOPE_API_TOKEN", "MODELSCOPE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    with ModelScopeHub(tmp_path / "hub") as running:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", running.url)
        yield running


def downloads(hub: ModelScopeHub, name: str) -> int:
    """How often the store was asked for a large file."""
    return sum(request.startswith("GET /lfs/") and request.endswith(name) for request in hub.requests)


def test_a_release_is_fetched_once_and_checked_whole(hub: ModelScopeHub, model: Path, tmp_path: Path) -> None:
    commit = hub.push("acme/tiny", model)
    heard: list[Progress] = []
    with listening("download", heard.append):
        snapshot = fetch("ms:acme/tiny")
    assert (snapshot.verdict, snapshot.revision, snapshot.source) == (Verdict.PASS, commit, "ms:acme/tiny")
    assert (snapshot.name, snapshot.digests_from, snapshot.tensors) == ("acme/tiny", "hub", 21)
    place = Path(snapshot.location)
    for file in snapshot.files:
        assert (place / file.name).read_bytes() == (model / file.name).read_bytes()
    fetched = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert fetched == {file.name for file in snapshot.files}
    assert "assets/note 1.txt" in fetched
    assert ("unsafe_file", "modeling_tiny.py") in [(warning.kind, warning.file) for warning in snapshot.warnings]
    assert "modeling_tiny.py" not in fetched
    assert heard
    assert not (tmp_path / "modelscope").exists()  # no identifier is kept, nor sent

    hub.requests.clear()
    assert fetch(f"ms:acme/tiny@{commit}") == snapshot
    assert hub.requests == []  # a commit never changes


def test_the_same_name_on_two_hubs_is_two_releases(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    assert "/ms/acme/tiny/" in fetch("ms:acme/tiny").location


def test_a_revision_stays_what_it_was_pinned_to(hub: ModelScopeHub, model: Path, tmp_path: Path) -> None:
    first = hub.push("acme/tiny", model)
    pinned = pin("ms:acme/tiny@master")
    second = hub.push("acme/tiny", make_tiny_llama(tmp_path / "other", seed=1))
    old = fetch(pinned.source, pinned)
    assert (old.verdict, old.revision) == (Verdict.PASS, first)
    assert (Path(old.location) / SHARD).read_bytes() == (model / SHARD).read_bytes()
    assert pin("ms:acme/tiny").revision == second != first


def test_a_damaged_file_is_fetched_again_alone(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.corrupt(SHARD, times=1)
    snapshot = fetch("ms:acme/tiny")
    assert snapshot.verdict is Verdict.PASS
    assert (Path(snapshot.location) / SHARD).read_bytes() == (model / SHARD).read_bytes()
    assert downloads(hub, SHARD) == 2
    assert downloads(hub, "model-00001-of-00002.safetensors") == 1


def test_a_file_that_stays_damaged_is_a_fault_with_both_digests(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.corrupt(SHARD)
    snapshot = fetch("ms:acme/tiny")
    assert snapshot.verdict is Verdict.FAIL
    (fault,) = snapshot.faults
    damaged = bytearray((model / SHARD).read_bytes())
    damaged[-1] ^= 1
    damaged_file = model.parent / "damaged"
    damaged_file.write_bytes(damaged)
    assert (fault.kind, fault.file) == ("digest", SHARD)
    assert sha256_file(model / SHARD) in fault.detail
    assert sha256_file(damaged_file) in fault.detail


def test_a_cut_connection_is_continued(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.cut(SHARD, times=1)
    snapshot = fetch("ms:acme/tiny")
    assert snapshot.verdict is Verdict.PASS
    assert (Path(snapshot.location) / SHARD).read_bytes() == (model / SHARD).read_bytes()


def test_sizes_and_digests_are_known_before_a_byte_is_fetched(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    release = modelscope.look_up("acme/tiny", None)
    assert release.files[SHARD].size == (model / SHARD).stat().st_size
    assert release.files[SHARD].sha256 == sha256_file(model / SHARD)
    assert release.files["config.json"].sha256 == sha256_file(model / "config.json")


def test_a_deadline_ends_a_stalled_download_and_the_next_one_continues_it(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.stall(SHARD)
    limit = Deadline("download", 600)

    def watch() -> None:
        while not any(hub.root.parent.glob(f"home/models/ms/acme/tiny/*/{SHARD}.incomplete")):
            time.sleep(0.05)
        limit.end(StageTimeout("download took too long"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with pytest.raises(StageTimeout), limit.running():
        fetch("ms:acme/tiny")
    assert not children()
    hub.troubles.clear()
    snapshot = fetch("ms:acme/tiny")
    assert snapshot.verdict is Verdict.PASS
    assert (Path(snapshot.location) / SHARD).read_bytes() == (model / SHARD).read_bytes()


def children() -> list[str]:
    """Transfers that this process started."""
    found = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return [line for line in found.stdout.splitlines() if "modelscope_transfer" in line]


def test_what_is_not_there_or_not_allowed(hub: ModelScopeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/tiny", model)
    with pytest.raises(InputError, match="there is no repository acme/none"):
        fetch("ms:acme/none")
    with pytest.raises(InputError, match="has no revision 'v9'"):
        fetch("ms:acme/tiny@v9")
    with pytest.raises(InputError, match=r"has no revision '0{40}'"):
        modelscope.look_up("acme/tiny", "0" * 40)
    hub.gate("acme/tiny")
    with pytest.raises(InputError, match="refuses acme/tiny to this account; set MODELSCOPE_API_TOKEN"):
        fetch("ms:acme/tiny")
    hub.token = "secret"
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
    hub.corrupt(SHARD, times=1)  # the second way is let in as well
    assert fetch("ms:acme/tiny").verdict is Verdict.PASS


def test_a_token_is_not_shown(hub: ModelScopeHub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("acme/tiny", model)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
    address = modelscope.address(modelscope.look_up("acme/tiny", None), "assets/note 1.txt")
    assert address.headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(address)


def test_the_token_of_a_login_is_its_clients_to_read(hub: ModelScopeHub, model: Path, tmp_path: Path) -> None:
    hub.push("acme/tiny", model)
    code = "from modelscope_hub.config import HubConfig; HubConfig().save_token('kept')"
    subprocess.run([sys.executable, "-c", code], check=True)
    release = modelscope.look_up("acme/tiny", None)
    assert modelscope.address(release, SHARD).headers["Authorization"] == "Bearer kept"


@pytest.mark.parametrize("page", ["/commits", "/repo/files"])
def test_a_hub_that_is_down(hub: ModelScopeHub, model: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    hub.push("acme/tiny", model)
    hub.error(page, 503)
    with pytest.raises(Unavailable, match="does not answer for acme/tiny: planted"):
        fetch("ms:acme/tiny")


def test_a_hub_that_is_not_there(hub: ModelScopeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 does not answer"):
        fetch("ms:acme/tiny")


@pytest.mark.parametrize(
    ("entry", "error", "says"),
    [
        ({"Path": "../../evil"}, InputError, "unusable name"),
        ({"Size": None}, Unavailable, "lists a file without a name or a size"),
        ({"Size": -1}, Unavailable, "lists a file without a name or a size"),
        ({"Path": 7}, Unavailable, "lists a file without a name or a size"),
    ],
)
def test_a_hostile_listing_is_refused(
    hub: ModelScopeHub,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: dict[str, object],
    error: type[Exception],
    says: str,
) -> None:
    hub.push("acme/tiny", model)
    hub.rewrite = lambda rows: [rows[-1] | entry]
    with pytest.raises(error, match=says):
        fetch("ms:acme/tiny")


def test_a_listing_that_the_hub_cuts_off_is_refused(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.rewrite = lambda rows: [rows[-1] | {"Path": f"{number}.json"} for number in range(3000)]
    with pytest.raises(Unavailable, match="at most 3,000 files"):
        fetch("ms:acme/tiny")


def test_a_file_without_a_digest_is_not_taken_for_checked(hub: ModelScopeHub, model: Path) -> None:
    hub.push("acme/tiny", model)
    hub.rewrite = lambda rows: [row | ({"Sha256": ""} if row["Path"] == SHARD else {}) for row in rows]
    snapshot = fetch("ms:acme/tiny")
    assert snapshot.verdict is Verdict.FAIL
    assert [(fault.kind, fault.file) for fault in snapshot.faults] == [("digest", SHARD)]


def test_without_its_client_the_remedy_is_told(
    hub: ModelScopeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text("import sys; sys.modules['modelscope_hub'] = None")
    monkeypatch.setenv("PYTHONPATH", str(blocked))
    with pytest.raises(Unavailable, match=r"pip install 'day0\[modelscope\]'"):
        fetch("ms:acme/tiny")


def test_day0_itself_imports_none_of_it() -> None:
    code = "import sys, tasks.download.fetch; sys.exit('modelscope_hub' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
