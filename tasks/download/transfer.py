"""The hub's own client, in a process of its own: it can be ended at any moment, and day0 imports none of it.

Run as `python -m tasks.download.transfer`. It prints lines that begin with a mark, each followed by one JSON value.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

MARK = "day0-transfer "


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
    return {"commit": info.sha, "files": files}


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
    """Tell the parent what went wrong."""
    tell("error", {"kind": kind, "text": " ".join(str(error).split())[:500] or type(error).__name__})
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
