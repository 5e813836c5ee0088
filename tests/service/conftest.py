"""What the service's tests share: a home of their own, a launch that is a small script, and the real environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from day0.artifacts.service import LaunchSpec
from tasks.service import registry
from tasks.service.engine import EngineConfig, load_engine
from tests.models.tiny import make_tiny_llama


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `$DAY0_HOME` that must hold no engine at the end."""
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    assert registry.records() == []


@pytest.fixture
def engine() -> EngineConfig:
    return load_engine("vllm-cpu").model_copy(update={"stop_grace": 0.5})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model")


@pytest.fixture
def scripted(tmp_path: Path, model: Path) -> Callable[[str], LaunchSpec]:
    """A launch whose engine is a small Python script; `{port}` in its arguments is the port."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/usr/bin/env")

    def make(script: str) -> LaunchSpec:
        file = tmp_path / "engine.py"
        file.write_text(script)
        return LaunchSpec(
            engine="vllm-cpu",
            engine_version="0",
            runtime="process",
            environment=str(tmp_path / "environment"),
            lock_digest="0",
            model_path=str(model),
            served_model_name="tiny",
            command=("python", "python3", str(file), "{port}"),
            env={},
            memory_bytes=1,
            ready_timeout=20,
        )

    return make


@pytest.fixture
def engine_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `$DAY0_HOME` shared by all tests that start a real engine, so that its environment is made once."""
    shared = Path(os.environ.get("DAY0_TEST_HOME") or Path.home() / ".cache" / "day0-tests")
    monkeypatch.setenv("DAY0_HOME", str(shared))
    yield shared
    assert [r.name for r in registry.records() if r.owner == registry.myself()] == []
