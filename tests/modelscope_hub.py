"""ModelScope on this machine, for tests: what its own client asks for, as the real one answers it.

The repositories, their commits and the troubles are `tests.hub`'s; only the pages differ. Large files are sent by
another address, to which the first one points; small ones come at once, and there a range is not honoured.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.hub import Blob, Commit, LocalHub, Repository, _Handler

_NAME = r"(?P<repo>[^/]+/[^/]+)"


class ModelScopeHub(LocalHub):
    """ModelScope over the folder `root`; `url` is what MODELSCOPE_ENDPOINT should be."""

    def __init__(self, root: Path, port: int = 0) -> None:
        super().__init__(root, port)
        self.token = ""
        """Who sends this may read what is gated."""
        self.rewrite: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda rows: rows
        """What becomes of a listing before it is sent: a hub may lie."""
        self._server.RequestHandlerClass = type("Handler", (_ModelScopeHandler,), {"hub": self})


class _ModelScopeHandler(_Handler):
    hub: ModelScopeHub
    routes = (
        (rf"/api/v1/models/{_NAME}/commits", "commits"),
        (rf"/api/v1/models/{_NAME}/revisions", "revisions"),
        (rf"/api/v1/models/{_NAME}/repo/files", "files"),
        (rf"/api/v1/models/{_NAME}/repo", "file"),
        (rf"/api/v1/models/{_NAME}", "info"),
        (rf"/lfs/{_NAME}/(?P<revision>[^/]+)/(?P<path>.+)", "large"),
    )

    def dispatch(self, name: str, repo: str = "", revision: str = "", path: str = "") -> None:
        revision = revision or self.asked("Ref" if name == "commits" else "Revision", "master")
        repository, commit = self.hub.find(repo, "main" if revision == "master" else revision)
        if repository is None:
            return self.refuse(404, "Record not found: model does not exist", "10010205001")
        if name != "large" and repository.gated and not self.admitted():
            return self.refuse(403, "model access denied", "10010205003")
        match name:
            case "info":
                return self.succeed({"Path": repo.split("/")[0], "Name": repo.split("/")[1], "Revision": "master"})
            case "revisions":
                branch = {"Revision": "master", "CreatedAt": 0}
                return self.succeed({"RevisionMap": {"Branches": [branch], "Tags": []}})
            case "commits":
                return self.commits(repository, commit)
        if commit is None:
            return self.refuse(404, f"git reference {revision} does not exist", "10010205004")
        match name:
            case "files":
                self.succeed({"Files": self.listed(commit), "LatestCommitter": {"ShortId": commit.sha[:8]}})
            case "large":
                self.send(commit, path)
            case _:
                self.file(repo, commit, self.asked("FilePath", ""))

    def asked(self, name: str, default: str) -> str:
        return self.query.get(name, [default])[0]

    def admitted(self) -> bool:
        sent = {self.headers.get("Authorization", "").removeprefix("Bearer ")}
        return bool(self.hub.token) and self.hub.token in sent

    def succeed(self, data: Any) -> None:
        self.answer({"Code": 200, "Data": data, "Message": "", "RequestId": "1", "Success": True})

    def refuse(self, status: int, message: str, code: str | None = None) -> None:
        body = {"Code": int(code or status), "Data": None, "Message": message, "RequestId": "1", "Success": False}
        self.answer(body, status)

    def commits(self, repository: Repository, commit: Commit | None) -> None:
        """The history that ends in `commit`; that of a name which does not exist is empty."""
        history = repository.commits[: repository.commits.index(commit) + 1][::-1] if commit else []
        page, size = int(self.asked("PageNumber", "1")), int(self.asked("PageSize", "10"))
        shown = [{"Id": c.sha, "ShortId": c.sha[:8]} for c in history[(page - 1) * size : page * size]]
        self.succeed({"Commit": shown or None, "TotalCount": len(history)})

    def listed(self, commit: Commit) -> list[dict[str, Any]]:
        folders = {str(parent) for name in commit.files for parent in Path(name).parents} - {"."}
        trees = [{"Path": name, "Name": Path(name).name, "Type": "tree", "Size": 0} for name in sorted(folders)]
        return self.hub.rewrite([*trees, *(_entry(name, blob, commit) for name, blob in sorted(commit.files.items()))])

    def file(self, repo: str, commit: Commit, name: str) -> None:
        blob = commit.files.get(name)
        if blob is None:
            return self.refuse(404, "file does not exist", "10010205005")
        if blob.lfs:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.url}/lfs/{repo}/{commit.sha}/{quote(name)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        self.send_response(200)
        self.send_header("Content-Length", str(blob.size))
        self.end_headers()
        return self.send_file(self.hub.blobs / blob.sha256, 0, blob.size)

    def send(self, commit: Commit, name: str) -> None:
        """A large file as its store sends it: with ranges."""
        blob = commit.files[name]
        begin, end = 0, blob.size
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin = int(match[1])
            end = min(int(match[2]) + 1, blob.size) if match[2] else blob.size
            if begin >= end:
                return self.refuse(416, "range not satisfiable")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{blob.size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        return self.send_file(self.hub.blobs / blob.sha256, begin, end)


def _entry(name: str, blob: Blob, commit: Commit) -> dict[str, Any]:
    return {
        "Path": name,
        "Name": Path(name).name,
        "Type": "blob",
        "Size": blob.size,
        "Sha256": blob.sha256,
        "IsLFS": blob.lfs,
        "Mode": "33188",
        "Revision": commit.sha,
        "CommittedDate": 0,
    }
