"""Pinned packages: what an environment or an image is made from, and how pip is asked for it."""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from day0.deadline import file_lock
from day0.files import folder_digest
from day0.home import home
from day0.process import run
from day0.progress import report


def lock_digest(folder: Path) -> str:
    """SHA-256 over an image folder's files: what an environment is made from."""
    return folder_digest(folder)


def build_lock(name: str, waiting: str) -> AbstractContextManager[None]:
    """Hold a lock file of `$DAY0_HOME/environments/`, so that one process builds and the others wait for it."""
    return file_lock(home() / "environments" / name, lambda: report(f"waiting: {waiting}"))


def torch_source() -> list[str]:
    """pip's options for where torch comes from: `$DAY0_TORCH_INDEX`, an index's address or a folder of wheels; by
    default none, so that pip's own settings hold."""
    source = os.environ.get("DAY0_TORCH_INDEX")
    if not source:
        return []
    return ["--find-links", source] if Path(source).is_dir() else ["--index-url", source]


def pip_download(requirements: Path, into: Path, options: list[str]) -> None:
    """Download the wheels that a requirements file pins, with this machine's pip settings."""
    count = Counter("downloading", pins(requirements))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(into), "-r", str(requirements)]
    run([*command, *options], on_line=count)


def pins(requirements: Path) -> int:
    return len(re.findall(r"^[A-Za-z0-9][\w.\-]*==", requirements.read_text(encoding="utf-8"), re.MULTILINE))


class Counter:
    """Turns pip's lines into progress."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0

    def __call__(self, line: str) -> None:
        if line.startswith("Collecting "):
            self.done += 1
            report(f"{self.what}: {line.split()[1]}", self.done, self.total, "packages")
        elif line.startswith("Installing collected"):
            report(f"{self.what}: installing", self.total, self.total, "packages")
