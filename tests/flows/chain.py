"""Running the `day0` command on the real model, with a home of its own, and reading what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def shared() -> Path:
    """Where tests keep what takes long to make: engine environments and the release."""
    return Path(os.environ.get("DAY0_TEST_HOME") or Path.home() / ".cache" / "day0-tests")


@dataclass
class Home:
    """A `$DAY0_HOME` with its own ledger, store and orchestrator; only the engine environments are shared."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Home:
        root.mkdir(parents=True)
        (shared() / "environments").mkdir(parents=True, exist_ok=True)
        (root / "environments").symlink_to(shared() / "environments")
        return cls(root)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a command: without what the tests' own process set for Prefect."""
        ours = ("DAY0_HOME", "DAY0_SERVER_PORT", "DAY0_LEDGER_URL")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_") and k not in ours}
        return clean | {"DAY0_HOME": str(self.root)} | more

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows.cli", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.env(**env))

    def day0(self, *arguments: str, **env: str) -> tuple[int, dict[str, Any]]:
        """Exit code and JSON of a command."""
        process = self.start(*arguments, "--json", **env)
        out, err = process.communicate(timeout=2400)
        assert "Traceback" not in err, err
        return process.returncode, json.loads(out)

    def report(self, stage: str, run: str) -> dict[str, Any]:
        """The newest artifact of a run's stage."""
        _, record = self.day0("show", run)
        found: dict[str, Any] = next(s for s in record["stages"] if s["name"] == stage)
        return found

    def close(self) -> None:
        self.day0("server", "stop")
        shutil.rmtree(self.root)


def verdicts(result: dict[str, Any]) -> dict[str, str]:
    return {stage["name"]: stage["verdict"] for stage in result["stages"]}


def reason(result: dict[str, Any], stage: str) -> str:
    return str(next(s["reason"] for s in result["stages"] if s["name"] == stage))


def engines_of(home: Home) -> list[str]:
    """Process ids that have this home's files in their command line, other than the orchestrator's."""
    found = subprocess.run(["pgrep", "-af", str(home.root)], capture_output=True, text=True, check=False).stdout
    return [line for line in found.splitlines() if "vllm" in line]
