"""The hub's own client, in a process of its own: it can be ended at any moment, and day0 imports none of it.

Run as `python -m tasks.download.transfer`. It prints lines that begin with a mark, each followed by one JSON value.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.download.space import FULL

MARK = "day0-transfer "

#: Files at once. Xet fetches the parts of each in parallel; and with fewer files at once the first are there sooner,
#: to be hashed and split while the others come.
WORKERS = 4


def main(arguments: list[str]) -> int:
    """`info REPO [REVISION]` or `download REQUEST.json`."""
    import httpx2
    from huggingface_hub import errors

    try:
        match arguments:
            case ["info", repository, *revision]:
                tell("info", describe(repository, revision[0] if revision else None))
            case ["download", request]:
                download(json.loads(Path(request).read_text()))
            case _:
                raise ValueError(f"unknown arguments {arguments}")
    except errors.GatedRepoError as error:
        return fail("gated", error)
    except errors.RevisionNotFoundError as error:
        return fail("revision", error)
    except errors.RepositoryNotFoundError as error:
        return fail("repository", error)
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        return fail("refused" if status in (401, 403) else "hub", error)
    except errors.HFValidationError as error:
        return fail("repository", error)
    except (errors.OfflineModeIsEnabled, httpx2.HTTPError, OSError) as error:
        return fail("hub", error)
    except RuntimeError as error:  # what Xet's client in Rust raises, for a full disk and for a broken connection
        return fail("hub", error)
    return 0


def describe(repository: str, revision: str | None) -> dict[str, Any]:
    """The commit that a revision stands for, and every file's size and digests."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    info = api.model_info(repository, revision=revision, files_metadata=True, timeout=30)
    files: dict[str, dict[str, Any]] = {}
    for file in info.siblings or []:
        sha256 = file.lfs.sha256 if file.lfs else None
        files[file.rfilename] = {"size": file.size, "sha256": sha256, "git_sha1": None if sha256 else file.blob_id}
    if any(file["size"] is None for file in files.values()):  # mirrors tell less than the hub; the tree has it
        for entry in api.list_repo_tree(repository, revision=info.sha, recursive=True):
            if isinstance(entry, RepoFile):
                sha256 = entry.lfs.sha256 if entry.lfs else None
                git_sha1 = None if sha256 else entry.blob_id
                files[entry.path] = {"size": entry.size, "sha256": sha256, "git_sha1": git_sha1}
    return {"commit": info.sha, "files": files, "xet": _serves_xet(repository, str(info.sha), files)}


def _serves_xet(repository: str, commit: str, files: dict[str, dict[str, Any]]) -> bool:
    """Whether the largest file comes by Xet: the client's own way, with chunks in parallel. Else it is plain HTTP."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    large = {name: file["size"] for name, file in files.items() if file["sha256"]}
    if not large or constants.HF_HUB_DISABLE_XET or not find_spec("hf_xet"):
        return False
    url = hf_hub_url(repository, max(large, key=large.__getitem__), revision=commit)
    try:
        return get_hf_file_metadata(url, timeout=30).xet_file_data is not None
    except errors.GatedRepoError:
        raise
    except errors.HfHubHTTPError:
        return False  # whatever it is, the fetching of that very file will tell


def download(request: dict[str, Any]) -> None:
    """Fetch the files named in `request` at its commit; what is there already is kept, what was begun continued."""
    from huggingface_hub import snapshot_download

    folder = Path(request["folder"])
    done = threading.Event()
    threading.Thread(target=_progress, args=(folder, done), daemon=True).start()
    try:
        snapshot_download(
            request["repository"],
            revision=request["commit"],
            local_dir=folder,
            allow_patterns=request["patterns"],
            max_workers=WORKERS,
        )
    finally:
        done.set()


def _progress(folder: Path, done: threading.Event) -> None:
    while not done.wait(1):
        total = 0
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_blocks * 512  # partial files are written sparsely
            except FileNotFoundError:
                continue  # renamed meanwhile
        tell("bytes", total)


def tell(what: str, value: Any) -> None:
    """One line for the parent."""
    print(f"{MARK}{json.dumps({what: value})}", flush=True)


def fail(kind: str, error: Exception) -> int:
    """Tell the parent what went wrong. A full disk is told as that, whatever the client made of it."""
    if (full := _full(error)) is not None:
        kind, error = "full", OSError(os.strerror(full))
    tell("error", {"kind": kind, "text": " ".join(str(error).split())[:500] or type(error).__name__})
    return 1


def _full(error: BaseException | None) -> int | None:
    """The errno of a full disk, if that is behind the error: as its cause, or in the words of a client in Rust."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number in FULL:
            return int(number)
        if found := next((n for n in FULL if os.strerror(n) in str(error)), None):
            return found
        error = error.__cause__ or error.__context__
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
