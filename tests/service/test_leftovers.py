"""What an engine leaves on the machine when it is ended, or was killed: nothing, and only its own is removed."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from day0.artifacts.service import LaunchSpec
from tasks.service import registry, supervisor
from tasks.service.engine import EngineConfig
from tasks.service.process import ProcessHandle, start_process
from tests.service.stub import SHARING
from tests.service.test_session import wait_for

Scripted = Callable[[str], LaunchSpec]


@pytest.fixture
def mine() -> Iterator[Path]:
    """A name for segments that no other test has."""
    path = supervisor.SHARED / f"day0-test-{os.getpid()}"
    yield path
    for left in supervisor.SHARED.glob(f"{path.name}*"):
        left.unlink()


@pytest.fixture
def there(mine: Path) -> Path:
    """A segment that was there before the engine, which maps it."""
    path = mine.with_name(f"{mine.name}-before")
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
def handle(
    home: Path, scripted: Scripted, engine: EngineConfig, tmp_path: Path, mine: Path, there: Path
) -> ProcessHandle:
    up = tmp_path / "engine.up"
    handle = start_process(scripted(SHARING % ([str(mine), str(there)], str(up))), engine, "name", "run", keep=False)
    wait_for(up.exists)
    return handle


def shared(mine: Path) -> list[str]:
    return sorted(path.name.removeprefix(mine.name) for path in supervisor.SHARED.glob(f"{mine.name}*"))


def temporary() -> Path:
    return Path(registry.find("name").temporary or "")


def recorded() -> bool:
    return len(registry.status("name").get("shared", {})) == 2


def test_an_engine_that_is_stopped_leaves_nothing(handle: ProcessHandle, mine: Path) -> None:
    folder = temporary()
    assert [path.name.startswith("socket") for path in folder.iterdir()] == [True]
    assert shared(mine) == ["", "-before", "-child"]
    handle.stop()
    assert shared(mine) == ["-before"]
    assert not folder.exists()


def test_an_engine_that_is_killed_leaves_nothing_once_its_supervisor_has_seen_it(
    handle: ProcessHandle, mine: Path
) -> None:
    folder = temporary()
    wait_for(recorded)
    first = registry.find("name").engine
    assert first is not None
    os.killpg(first.pid, signal.SIGKILL)
    wait_for(lambda: not folder.exists())
    assert shared(mine) == ["-before"]
    handle.stop()


def test_a_killed_supervisor_leaves_nothing_once_the_engine_is_stopped(handle: ProcessHandle, mine: Path) -> None:
    folder = temporary()
    wait_for(recorded)
    watcher = registry.find("name").supervisor
    assert watcher is not None
    os.kill(watcher.pid, signal.SIGKILL)
    handle.stop()
    assert shared(mine) == ["-before"]
    assert not folder.exists()


def test_what_others_made_or_still_map_is_left(handle: ProcessHandle, mine: Path) -> None:
    others = mine.with_name(f"{mine.name}-other")
    others.write_bytes(bytes(4096))
    with mine.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        handle.stop()
        assert shared(mine) == ["", "-before", "-other"]


def test_a_name_that_was_given_anew_is_left(mine: Path) -> None:
    mine.write_bytes(b"old")
    old = mine.stat().st_ino
    supervisor.remove_shared({mine.name: old + 1, "../etc": 1})
    assert mine.exists()
    supervisor.remove_shared({mine.name: old})
    assert not mine.exists()


def test_a_record_can_have_no_other_folder_removed(home: Path, scripted: Scripted, tmp_path: Path) -> None:
    record = registry.EngineRecord(
        name="n", run="r", owner=registry.myself(), keep=False, url="", launch=scripted(""), temporary=str(tmp_path)
    )
    registry.save(record)
    registry.stop(record)
    assert tmp_path.exists()


def test_a_start_that_fails_leaves_nothing(
    home: Path, scripted: Scripted, engine: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    python = tmp_path / "environment" / "bin" / "python"
    python.unlink()
    python.write_text("no program")
    start_process(scripted(""), engine, "name", "run", keep=False).stop()
    assert list((tmp_path / "temporary").iterdir()) == []
