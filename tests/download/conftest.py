"""A hub on this machine, and a release whose shards are larger than what a survey asks for at first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from day0 import landing
from tasks.download import client, direct
from tasks.download.manifest import Expected
from tasks.download.source import HubRelease
from tests.download.builder import ONE, TWO, entry, raw
from tests.hub import LocalHub

NAMES = {ONE: "model.a.weight", TWO: "model.b.weight"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with LocalHub(tmp_path / "hub") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def listed(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What the hub lists is known without its client, which takes a second to start; the parameter is `by_client`."""
    by_client = getattr(request, "param", False)

    def look_up(repository: str, revision: str | None) -> HubRelease:
        _, commit = hub.find(repository, revision or "main")
        assert commit
        files = {
            name: Expected(blob.size, blob.sha256 if blob.lfs else None, None if blob.lfs else blob.oid)
            for name, blob in commit.files.items()
        }
        return HubRelease(repository, commit.sha, hub.url, files, by_client)

    monkeypatch.setattr(client, "look_up", look_up)
    monkeypatch.setattr(direct, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(landing, "PATIENCE", 1.0)


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large(tmp_path_factory.mktemp("large") / "model", 2 << 20)


def write_large(root: Path, size: int, padding: int = 0) -> Path:
    """A release of two shards of `size` random bytes as one tensor each; `padding` spaces lengthen the headers."""
    root.mkdir()
    for file, name in NAMES.items():
        header = json.dumps({name: entry(0, size, "BF16", [size // 2])}).encode() + b" " * padding
        (root / file).write_bytes(raw(header, os.urandom(size)))
    index = {"metadata": {"total_size": 2 * size}, "weight_map": {name: file for file, name in NAMES.items()}}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))
    (root / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    (root / "tokenizer.json").write_text("{}")
    return root


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys `ours.pem` and `eve.pem`, and their public halves `.pub`."""
    from tests.download.signing import private_key

    folder = tmp_path_factory.mktemp("keys")
    private_key(folder / "ours.pem")
    private_key(folder / "eve.pem")
    return folder


@pytest.fixture
def signed(tmp_path: Path, keys: Path) -> Callable[..., Path]:
    """Makes a sound release, signed with our key by the library itself."""
    from tests.download.signing import signed_release

    return partial(signed_release, tmp_path / "m", keys / "ours.pem")
