"""ModelScope: what a release there consists of, its files, and where each of them is.

A hub as `tasks.download.source` has it. Its pages, below `/api/v1/models/ORG/NAME/`: `commits` tells what a revision
stands for, `repo/files` each file's size and SHA-256 at a commit, `repo?FilePath=` sends one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from day0.errors import Day0Error, InputError, Unavailable
from tasks.download.foreign import Told, ask, download, listed
from tasks.download.source import Address, HubRelease
from tasks.download.space import disk_full

#: No lock of its own (one is held already), one stream for each of several files, so that an unfinished one is always
#: named `.incomplete`, no probing for a cloud's inner network, nothing on the terminal.
_QUIET = {
    "MODELSCOPE_DOWNLOAD_FILE_LOCK": "false",
    "MODELSCOPE_DOWNLOAD_PARALLEL_WORKERS": "1",
    "MODELSCOPE_DOWNLOAD_INTRA_CLOUD": "false",
    "MODELSCOPE_LOG_LEVEL": "ERROR",
    "MODELSCOPE_NO_DEPRECATION_WARNINGS": "true",
    "TQDM_DISABLE": "1",
}
#: What its client waits for a file in all, in seconds. The stage's own time is what ends a download.
_PATIENCE = {"MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT": str(7 * 86400)}
#: Who runs this, which its client sends along with every request.
_PERSONAL = ("MODELSCOPE_CLOUD_USERNAME", "MODELSCOPE_CLOUD_ENVIRONMENT")


def endpoint() -> str | None:
    """The endpoint that the user names (`$MODELSCOPE_ENDPOINT`, formerly `$MODELSCOPE_DOMAIN`), if any.

    Without one the client looks at modelscope.cn and then at modelscope.ai.
    """
    named = os.environ.get("MODELSCOPE_ENDPOINT") or os.environ.get("MODELSCOPE_DOMAIN", "").strip()
    if not named:
        return None
    return (named if named.lower().startswith(("http://", "https://")) else f"https://{named}").rstrip("/")


def look_up(repository: str, revision: str | None) -> HubRelease:
    """The commit that a revision (None: the branch `master`) stands for now, and its files.

    Raises:
        InputError: there is no such repository or revision, or it may not be read.
        Unavailable: ModelScope does not answer, or its client is not installed.
    """
    told = _ask(["info", repository, *([revision] if revision else [])], repository, revision)
    lacking = f"{_named(told)} named no commit for {repository}; is it ModelScope?"
    commit, files = listed(told.get("info"), repository, "ModelScope", lacking)
    return HubRelease(repository, commit, told["endpoint"], files)


def transfer(release: HubRelease, names: list[str], folder: Path) -> None:
    """Fetch files of a release into `folder`, continuing what was begun there.

    Raises:
        InputError, Unavailable: as `look_up`.
        StageTimeout, Cancelled: the stage's time was up; nothing goes on in the background.
    """
    folder.mkdir(parents=True, exist_ok=True)
    request = {
        "endpoint": endpoint() or release.hub,
        "repository": release.repository,
        "commit": release.commit,
        "folder": str(folder),
        "files": {name: release.files[name].size for name in names},
    }
    total = sum(release.files[name].size or 0 for name in names)
    download(request, total, lambda words, tell: _ask(words, release.repository, release.commit, tell))


def address(release: HubRelease, name: str) -> Address:
    """Where one file is, at the release's commit. A small file is sent whole, also where a range was asked for."""
    hub = endpoint() or release.hub
    query = urlencode({"Revision": release.commit, "FilePath": name}, quote_via=quote)
    return Address(f"{hub}/api/v1/models/{release.repository}/repo?{query}", _credentials(hub))


def _credentials(hub: str) -> dict[str, str]:
    """As its client sends them: old pages know the cookie, new ones the header."""
    token = os.environ.get("MODELSCOPE_API_TOKEN")
    if token is None:
        token = _kept_token(hub, os.environ.get("MODELSCOPE_HOME"))
    return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token else {}


@cache
def _kept_token(hub: str, home: str | None) -> str | None:
    """The token of a login that its client keeps in `home`. Only the client reads it: the file is a pickle."""
    token = _ask(["token", hub], "", None).get("token")
    return token if isinstance(token, str) else None


def _ask(
    words: list[str], repository: str, revision: str | None, on_bytes: Callable[[int], None] | None = None
) -> Told:
    def explain(told: Told) -> Day0Error:
        return _explain(told, repository, revision)

    env = {name: value for name, value in os.environ.items() if name not in _PERSONAL}
    return ask("tasks.download.modelscope_transfer", words, _PATIENCE | env | _QUIET, explain, on_bytes)


def _named(told: dict[str, Any]) -> str:
    return str(told.get("endpoint") or endpoint() or "ModelScope")


def _explain(told: dict[str, Any], repository: str, revision: str | None) -> Day0Error:
    hub = _named(told)
    match told["error"]["kind"]:
        case "client":
            return Unavailable("ms: needs ModelScope's client, which is not installed: pip install 'day0[modelscope]'")
        case "refused":
            return InputError(f"{hub} refuses {repository} to this account; set MODELSCOPE_API_TOKEN to one that may")
        case "repository":
            remedy = "check the name; for a private repository set MODELSCOPE_API_TOKEN"
            return InputError(f"there is no repository {repository} on {hub}; {remedy}")
        case "full":
            return disk_full(told["error"]["text"])
        case "revision":
            return InputError(f"{repository} has no revision {revision or 'master'!r} on {hub}")
        case _:
            return Unavailable(f"{hub} does not answer for {repository}: {told['error']['text']}")
