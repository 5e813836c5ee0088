"""A hub's release is planned from its headers and split while it arrives; what was damaged is fetched again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from day0.safetensors_header import read_header
from tests.flows.chain import Home, reason, verdicts
from tests.hub import LocalHub
from tests.models.tiny import make_tiny_llama

pytestmark = [pytest.mark.orchestrator, pytest.mark.timeout(300)]

SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub") as hub:
        hub.push("org/tiny", make_tiny_llama(tmp_path / "m", layers=6, hidden=256, shards=3))
        yield hub


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home.make(tmp_path / "home")
    yield home
    home.close()


def adapt(home: Home, hub: LocalHub) -> tuple[int, dict[str, Any]]:
    return home.day0("adapt", "hf:org/tiny", "--target", "cpu", "--until", "reshard", HF_ENDPOINT=hub.url)


def test_shards_are_split_while_others_arrive(home: Home, hub: LocalHub) -> None:
    hub.slow(SHARD, 3e5)
    exit_code, result = adapt(home, hub)
    assert exit_code == 0, result
    assert verdicts(result) == dict.fromkeys(("survey", "download", "profile", "plan", "reshard"), "pass")
    assert "headers alone" in reason(result, "survey")
    # The plan and the first shards did not wait for the slow one.
    journals = [stage for stage in result["stages"] if stage["name"] in ("profile", "plan")]
    download = next(stage for stage in result["stages"] if stage["name"] == "download")
    assert sum(stage["seconds"] for stage in journals) < download["seconds"]
    made = home.report("reshard", result["run"])
    tree = next((home.root / "store/trees").glob("reshard-*"))
    record = json.loads((tree / "ranks.json").read_text())
    assert {t["tensor"] for t in record["tensors"]} == {
        tensor for path in tree.glob("*.safetensors") for tensor in read_header(path, path.name).tensors
    }
    assert made["verdict"] == "pass"
    again_code, again = adapt(home, hub)
    assert again_code == 0
    assert all(stage["cached"] for stage in again["stages"])


def test_a_shard_that_was_damaged_on_the_way_is_split_from_what_came_the_second_time(home: Home, hub: LocalHub) -> None:
    hub.corrupt(SHARD, times=2)  # the survey meets the first, in bytes that it does not use
    exit_code, result = adapt(home, hub)
    assert exit_code == 0, result
    assert set(verdicts(result).values()) == {"pass"}


def test_a_shard_that_stays_damaged_fails_both_and_says_which(home: Home, hub: LocalHub) -> None:
    hub.corrupt(SHARD)
    exit_code, result = adapt(home, hub)
    assert exit_code == 1, result
    assert verdicts(result)["download"] == "fail"
    assert SHARD in reason(result, "download")
    assert verdicts(result)["reshard"] != "pass"
    assert not list((home.root / "store/trees").glob("reshard-*"))
