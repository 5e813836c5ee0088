"""The Hugging Face hub: what a release consists of, its files, and where each of them is."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from day0 import process
from day0.checkpoint import unsafe_name
from day0.errors import Day0Error, InputError, Unavailable
from day0.home import PROJECT
from day0.progress import report
from tasks.download.manifest import Expected
from tasks.download.source import Address, HubRelease
from tasks.download.space import disk_full
from tasks.download.transfer import MARK

COMMIT = re.compile(r"[0-9a-f]{40}")
_QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
}


def endpoint() -> str:
    """The hub: `$HF_ENDPOINT`, by default the public one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def look_up(repository: str, revision: str | None) -> HubRelease:
    """The commit that a revision (None: the main branch) stands for now, and its files.

    Raises:
        InputError: there is no such repository or revision, or it may not be read.
        Unavailable: the hub does not answer.
    """
    answers = _client(["info", repository, *([revision] if revision else [])], repository, revision)
    info = answers.get("info")
    if not isinstance(info, dict) or not COMMIT.fullmatch(str(info.get("commit"))):
        raise Unavailable(f"the hub {endpoint()} named no commit for {repository}; is HF_ENDPOINT a model hub?")
    for name in info["files"]:
        if problem := unsafe_name(name):
            raise InputError(f"{repository} is refused, because the hub lists a file with an unusable name: {problem}")
    files = {name: Expected(**entry) for name, entry in info["files"].items()}
    return HubRelease(repository, info["commit"], endpoint(), files, by_client=bool(info["xet"]))


def transfer(release: HubRelease, names: list[str], folder: Path) -> None:
    """Fetch files of a release into `folder`, by Xet where the hub serves it.

    Raises:
        InputError, Unavailable: as `look_up`.
        StageTimeout, Cancelled: the stage's time was up; nothing goes on in the background.
    """
    total = sum(release.files[name].size or 0 for name in names)
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in (folder / ".cache" / "huggingface").rglob("*.incomplete"):
        unfinished.unlink()  # of a client that was killed: the next one does not continue it
    patterns = [re.sub(r"([*?[])", r"[\1]", name) for name in names]
    request = {"repository": release.repository, "commit": release.commit, "folder": str(folder), "patterns": patterns}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(request, file)
        file.flush()
        _client(
            ["download", file.name],
            release.repository,
            release.commit,
            on_bytes=lambda done: report("downloading", min(done, total), total, "B"),
        )


def address(release: HubRelease, name: str) -> Address:
    """Where one file is, at the release's commit."""
    from huggingface_hub import get_token

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Address(f"{endpoint()}/{release.repository}/resolve/{release.commit}/{quote(name)}", headers)


def _client(
    arguments: list[str], repository: str, revision: str | None, on_bytes: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Run the hub's client in its process; returns what it told."""
    told: dict[str, Any] = {}

    def line(text: str) -> None:
        if not text.startswith(MARK):
            return
        told.update(json.loads(text.removeprefix(MARK)))
        if on_bytes and "bytes" in told:
            on_bytes(told["bytes"])

    command = [sys.executable, "-m", "tasks.download.transfer", *arguments]
    try:
        process.run(command, cwd=PROJECT, env={**os.environ, **_QUIET}, on_line=line)
    except process.ProcessFailed as failure:
        if "error" not in told:
            raise
        raise _explain(told["error"], repository, revision) from failure
    return told


def _explain(error: dict[str, str], repository: str, revision: str | None) -> Day0Error:
    match error["kind"]:
        case "gated":
            remedy = f"accept its terms at {endpoint()}/{repository} and set HF_TOKEN"
            return InputError(f"{repository} is gated; {remedy}")
        case "refused":
            return InputError(
                f"the hub {endpoint()} refuses {repository} to this account; set HF_TOKEN to one that may"
            )
        case "repository":
            remedy = "check the name; for a private repository set HF_TOKEN"
            return InputError(f"there is no repository {repository} on {endpoint()}; {remedy}")
        case "full":
            return disk_full(error["text"])
        case "revision":
            return InputError(f"{repository} has no revision {revision!r} on {endpoint()}")
        case _:
            return Unavailable(f"the hub {endpoint()} does not answer for {repository}: {error['text']}")
