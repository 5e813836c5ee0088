"""ModelScope's own client, in a process of its own: it can be ended at any moment, and day0 imports none of it.

Run as `python -m tasks.download.modelscope_transfer`; it talks to its parent as `tasks.download.transfer` does.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from tasks.download.transfer import fail, tell

COMMIT = re.compile(r"[0-9a-f]{40}")
WORKERS = 8


class Refused(Exception):
    """An answer that cannot be used, of the kind that the parent explains."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def main(arguments: list[str]) -> int:
    """`info REPO [REVISION]`, `token ENDPOINT` or `download REQUEST.json`."""
    try:
        from modelscope_hub import errors
    except ModuleNotFoundError as error:
        if error.name != "modelscope_hub":
            raise
        return fail("client", error)
    try:
        match arguments:
            case ["info", repository, *revision]:
                describe(repository, revision[0] if revision else None)
            case ["token", endpoint]:
                tell("token", client(endpoint).legacy.token)
            case ["download", request]:
                download(json.loads(Path(request).read_text()))
            case _:
                raise ValueError(f"unknown arguments {arguments}")
    except Refused as error:
        return fail(error.kind, error)
    except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
        return fail("refused", error)
    except errors.NotExistError as error:
        return fail("repository", error)
    except errors.HubError as error:
        plain = Refused("hub", error.message)  # without the request's details
        plain.__cause__ = error
        return fail("hub", plain)
    except OSError as error:  # also requests' exceptions
        return fail("hub", error)
    return 0


def client(endpoint: str | None = None) -> Any:
    """Its client for `endpoint`; by default the one that the user's settings name."""
    from modelscope_hub import HubApi
    from modelscope_hub.config import HubConfig, set_default_config

    class Anonymous(HubConfig):
        """Without the identifier that is kept on this machine and sent along with every request."""

        __slots__ = ()

        def get_session_id(self) -> str:
            return uuid.uuid4().hex

    config = Anonymous(endpoint=endpoint)
    set_default_config(config)
    return HubApi(config)


def describe(repository: str, revision: str | None) -> None:
    """Tell the endpoint, the commit that a revision stands for, and every file's size and SHA-256."""
    from modelscope_hub.errors import NotExistError

    endpoint = client().resolve_endpoint_for_read(repository, repo_type="model")
    tell("endpoint", endpoint)
    api = client(endpoint).legacy
    try:
        commit = revision if revision and COMMIT.fullmatch(revision) else _newest(api, repository, revision or "master")
        rows = api.list_repo_files(repository, "model", commit, recursive=True)
    except NotExistError as error:
        api._request("GET", f"models/{repository}", single_attempt=True)  # fails where the whole repository is absent
        raise Refused("revision", error.message) from error
    if getattr(api._read_state, "listing_incomplete", False):
        raise Refused("hub", "it lists at most 3,000 files of a folder, and one of this repository has more")
    tell("info", {"commit": commit, "files": dict(_file(row) for row in rows if _field(row, "Type") != "tree")})


def _newest(api: Any, repository: str, revision: str) -> str:
    """The newest commit of a branch or tag. A name that does not exist has an empty history."""
    query = {"Ref": revision, "PageNumber": 1, "PageSize": 1}
    answer = api._request("GET", f"models/{repository}/commits", params=query, single_attempt=True)
    try:
        commits = answer.json()["Data"]["Commit"]
        commit = commits[0]["Id"] if commits else None
    except (ValueError, LookupError, TypeError) as error:
        raise Refused("hub", "its history of commits cannot be read") from error
    if commit is None:
        raise Refused("revision", f"{revision} has no commit")
    return str(commit)


def _file(row: Any) -> tuple[str, dict[str, Any]]:
    name, size, sha256 = _field(row, "Path"), _field(row, "Size"), _field(row, "Sha256")
    if not isinstance(name, str) or type(size) is not int or size < 0:
        raise Refused("hub", f"it lists a file without a name or a size: {json.dumps(row)[:100]}")
    known = isinstance(sha256, str) and re.fullmatch(r"[0-9a-fA-F]{64}", sha256)
    return name, {"size": size, "sha256": sha256.lower() if known else None}


def _field(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, dict) else None


def download(request: dict[str, Any]) -> None:
    """Fetch the files of `request` at its commit; what is there already is kept, what was begun continued.

    The client is not told the digests: it would fetch a file that differs from its digest three more times in the
    way that has just failed. The parent compares every byte, and fetches such a file in another way.
    """
    from modelscope_hub.errors import FileDownloadError, FileIntegrityError

    files = [{"Path": name, "Size": size, "Type": "blob"} for name, size in request["files"].items()]
    try:
        client(request["endpoint"]).downloader.download_repo(
            request["repository"],
            "model",
            revision=request["commit"],
            local_dir=Path(request["folder"]),
            file_list=files,
            max_workers=WORKERS,
            progress_callbacks=[Progress],
        )
    except FileDownloadError as error:
        others = [each for each in error.failed_files.values() if not isinstance(each, FileIntegrityError)]
        if others:  # a file of the wrong size is the parent's to see
            raise others[0] from error


class Progress:
    """What the client calls for each file; tells the parent how many bytes have come in all."""

    done = 0
    told = 0.0
    lock = threading.Lock()

    def __init__(self, filename: str, file_size: int) -> None:
        pass

    def update(self, size: int) -> None:
        """`size` more bytes; fewer, where the client starts a file anew."""
        with Progress.lock:
            Progress.done += size
            if time.monotonic() - Progress.told >= 1:
                Progress.told = time.monotonic()
                tell("bytes", Progress.done)

    def end(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
