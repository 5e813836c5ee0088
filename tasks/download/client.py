"""The Hugging Face hub: what a release consists of, its files, and where each of them is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from day0.errors import Day0Error, InputError, Unavailable
from tasks.download.foreign import Told, ask, download, listed
from tasks.download.source import Address, HubRelease
from tasks.download.space import disk_full

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
    info = _ask(["info", repository, *([revision] if revision else [])], repository, revision).get("info")
    lacking = f"the hub {endpoint()} named no commit for {repository}; is HF_ENDPOINT a model hub?"
    commit, files = listed(info, repository, "the hub", lacking)
    return HubRelease(repository, commit, endpoint(), files, by_client=bool(info and info["xet"]))


def transfer(release: HubRelease, names: list[str], folder: Path) -> None:
    """Fetch files of a release into `folder`, by Xet where the hub serves it.

    Raises:
        InputError, Unavailable: as `look_up`.
        StageTimeout, Cancelled: the stage's time was up; nothing goes on in the background.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in (folder / ".cache" / "huggingface").rglob("*.incomplete"):
        unfinished.unlink()  # of a client that was killed: the next one does not continue it
    patterns = [re.sub(r"([*?[])", r"[\1]", name) for name in names]
    request = {"repository": release.repository, "commit": release.commit, "folder": str(folder), "patterns": patterns}
    total = sum(release.files[name].size or 0 for name in names)
    download(request, total, lambda words, tell: _ask(words, release.repository, release.commit, tell))


def address(release: HubRelease, name: str) -> Address:
    """Where one file is, at the release's commit."""
    from huggingface_hub import get_token

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Address(f"{endpoint()}/{release.repository}/resolve/{release.commit}/{quote(name)}", headers)


def _ask(
    words: list[str], repository: str, revision: str | None, on_bytes: Callable[[int], None] | None = None
) -> Told:
    def explain(told: Told) -> Day0Error:
        return _explain(told["error"], repository, revision)

    return ask("tasks.download.transfer", words, {**os.environ, **_QUIET}, explain, on_bytes)


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
