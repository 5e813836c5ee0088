"""Someone else's client or library, in a process of its own, and what it tells: lines that begin with a mark.

It can be ended at any moment, and day0 imports none of it. The other side is `tell` in transfer.py.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from day0 import process
from day0.checkpoint import unsafe_name
from day0.errors import Day0Error, InputError, Unavailable
from day0.home import PROJECT
from day0.progress import report
from tasks.download.manifest import Expected
from tasks.download.transfer import MARK

COMMIT = re.compile(r"[0-9a-f]{40}")

Told = dict[str, Any]


def ask(
    module: str,
    arguments: list[str],
    env: Mapping[str, str] | None = None,
    explain: Callable[[Told], Day0Error] | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Told:
    """Run `python -m module` and return what it told, by name.

    Args:
        env: its environment; None: this process's.
        explain: the error to raise, from what was told, where that is an `error`; without it that is returned too.
        on_bytes: called whenever it tells how many bytes have come.

    Raises:
        Day0Error: what `explain` makes of the error that was told.
        ProcessFailed: it ended otherwise.
        StageTimeout, Cancelled: the time was up; nothing goes on in the background.
    """
    told: Told = {}

    def line(text: str) -> None:
        if not text.startswith(MARK):
            return
        told.update(json.loads(text.removeprefix(MARK)))
        if on_bytes and "bytes" in told:
            on_bytes(told["bytes"])

    try:
        process.run(
            [sys.executable, "-m", module, *arguments],
            cwd=PROJECT,
            env=dict(env) if env is not None else None,
            on_line=line,
        )
    except process.ProcessFailed as failure:
        if "error" not in told:
            raise
        if explain:
            raise explain(told) from failure
    return told


def download(request: dict[str, Any], total: int, ask: Callable[[list[str], Callable[[int], None]], Told]) -> None:
    """Hand a client the request for a download, in a file, and report how it gets on."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(request, file)
        file.flush()
        ask(["download", file.name], lambda done: report("downloading", min(done, total), total, "B"))


def listed(info: Any, repository: str, hub: str, lacking: str) -> tuple[str, dict[str, Expected]]:
    """The commit and the files that a hub lists.

    Raises:
        InputError: a name cannot be that of a file in a folder.
        Unavailable: it names no commit; `lacking` says so.
    """
    if not isinstance(info, dict) or not COMMIT.fullmatch(str(info.get("commit"))):
        raise Unavailable(lacking)
    for name in info["files"]:
        if problem := unsafe_name(name):
            raise InputError(f"{repository} is refused, because {hub} lists a file with an unusable name: {problem}")
    return info["commit"], {name: Expected(**entry) for name, entry in info["files"].items()}
