from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HOME


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """The tests' home, with a real orchestrator running in it."""
    from flows.orchestrator import stop_server, use_server

    url = os.environ.pop("PREFECT_API_URL")
    assert use_server().url == url
    yield HOME
    stop_server()


@pytest.fixture
def calls_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls"
    monkeypatch.setenv("TOY_CALLS", str(path))
    return path
