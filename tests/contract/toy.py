"""Stages small enough to reason about, for tests of the contract around them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from day0 import process
from day0.artifacts.base import Artifact, Settings
from day0.errors import Unavailable
from day0.files import file_ref
from day0.http import http_client
from day0.stage import stage, tree_of, workspace
from day0.verdict import Check, Verdict

#: Where the stages note that their bodies really ran: one line each.
CALLS = "TOY_CALLS"


def calls() -> list[str]:
    path = Path(os.environ[CALLS])
    return path.read_text().split() if path.exists() else []


def _called(name: str) -> None:
    with Path(os.environ[CALLS]).open("a") as file:
        file.write(name + "\n")


def passed(reason: str = "it was as it should be") -> tuple[Check, ...]:
    return (Check(name="toy", verdict=Verdict.PASS, reason=reason),)


class Text(Artifact):
    kind: ClassVar[str] = "toy-text"
    text: str


class Folder(Artifact):
    kind: ClassVar[str] = "toy-folder"


class TextSettings(Settings):
    text: str = "a"
    verdict: Verdict = Verdict.PASS


class FolderSettings(Settings):
    sleep: float = 0.0


class FlakySettings(Settings):
    failures: int = 1


class BlockSettings(Settings):
    how: str
    url: str = ""


@stage("download", version=1)
def make_text(settings: TextSettings) -> Text:
    """A text."""
    _called("download")
    return Text(text=settings.text, checks=(Check(name="toy", verdict=settings.verdict, reason="as asked"),))


@stage("reshard", version=1)
def make_folder(text: Text, settings: FolderSettings) -> Folder:
    """A folder with one file, half of it written before a pause."""
    _called("reshard")
    path = workspace() / "file.txt"
    path.write_text(text.text)
    time.sleep(settings.sleep)
    path.write_text(text.text * 2)
    return Folder(checks=passed(), files=(file_ref(workspace(), "file.txt"),))


@stage("service", version=1)
def read_folder(folder: Folder) -> Text:
    """What is in the folder."""
    _called("service")
    return Text(text=(tree_of(folder) / "file.txt").read_text(), checks=passed())


@stage("profile", version=1, retries=2)
def flaky(settings: FlakySettings) -> Text:
    """Fails as an absent service does, a given number of times."""
    _called("profile")
    if calls().count("profile") <= settings.failures:
        raise Unavailable("the toy service is not there")
    return Text(text="done", checks=passed())


@stage("smoke", version=1, timeout=2)
def block(settings: BlockSettings) -> Text:
    """Waits for something that does not come, in the ways in which stages wait."""
    _called("smoke")
    if settings.how == "subprocess":
        process.run([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
    elif settings.how == "grandchild":
        process.run(["sh", "-c", "sleep 613 & sleep 613"])
    elif settings.how == "http":
        with http_client(timeout=600) as client:
            client.get(settings.url)
    return Text(text="never", checks=passed())


def running(pattern: str) -> bool:
    """Whether some process has this in its command line."""
    return subprocess.run(["pgrep", "-f", pattern], capture_output=True, check=False).returncode == 0
