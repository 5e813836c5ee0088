"""A small model hub on this machine, for tests and for trying `day0 watch`: what the hub's own client needs, no more.

    python -m tests.hub ROOT --port 8765        # serves ROOT/ORG/NAME/…; HF_ENDPOINT=http://127.0.0.1:8765

Every folder ROOT/ORG/NAME is a repository. Whenever what lies in it has changed, the next request finds a new commit
on `main`: copying files there is pushing, and half of the files is a release that is still being uploaded. Earlier
commits keep their content (copies under ROOT/.hub).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, Literal
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".bin", ".pt")
LFS_BYTES = 10 << 20
PIECE = 256 << 10


@dataclass(frozen=True)
class Blob:
    """One file of a commit. `oid` is the git blob id that a hub shows (for a large file that of its pointer)."""

    size: int
    sha256: str
    oid: str
    lfs: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass
class Commit:
    sha: str
    date: str
    files: dict[str, Blob]


@dataclass
class Repository:
    commits: list[Commit] = field(default_factory=list)  # newest last
    signature: Any = None  # of the folder as it was at the newest commit
    gated: bool = False


@dataclass
class Trouble:
    """What goes wrong: the next `times` requests (None: all) whose path matches `path` are served so."""

    kind: Literal["corrupt", "cut", "reset", "page", "error", "stall"]
    path: str
    times: int | None = None
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)


class LocalHub:
    """A hub over the folder `root`. As a context manager it serves; `url` is what HF_ENDPOINT should be."""

    def __init__(self, root: Path, port: int = 0, host: str = "127.0.0.1") -> None:
        self.root = Path(root)
        self.blobs = self.root / ".hub" / "blobs"
        self.blobs.mkdir(parents=True, exist_ok=True)
        self.repositories: dict[str, Repository] = {}
        self.troubles: list[Trouble] = []
        self.requests: list[str] = []
        """`GET /path`, in the order in which they came."""
        self.ranges = True
        """Whether a part of a file can be had."""
        self.rates: dict[str, float] = {}
        """Bytes per second of a connection whose request path matches the pattern."""
        self.sent = 0
        """Bytes of files that were sent."""
        self.publishers: set[str] = set()
        """Organizations whose kernels the hub trusts. A repository of kernels is like any other, with a branch v1."""
        self.closing = threading.Event()
        self._lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> LocalHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def push(self, repo: str, folder: Path, only: list[str] | None = None) -> str:
        """Make `main` of `repo` what lies in `folder` (or `only` these files of it); returns the commit."""
        names = [p.relative_to(folder).as_posix() for p in sorted(Path(folder).rglob("*")) if p.is_file()]
        target = self.root / repo
        with self._lock:
            shutil.rmtree(target, ignore_errors=True)
            for name in names:
                if only is None or name in only:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(Path(folder) / name, target / name)
            self.scan()
            return self.repositories[repo].commits[-1].sha

    def gate(self, repo: str) -> None:
        """Let nobody read `repo`."""
        with self._lock:
            self.scan()
            self.repositories[repo].gated = True

    def corrupt(self, path: str, times: int | None = None) -> None:
        """One byte is wrong in the bodies of files whose request path matches the pattern `path`."""
        self.troubles.append(Trouble("corrupt", path, times))

    def cut(self, path: str, times: int | None = None) -> None:
        """The connection breaks half-way through the body."""
        self.troubles.append(Trouble("cut", path, times))

    def reset(self, path: str, times: int | None = None) -> None:
        """The connection is reset half-way through the body."""
        self.troubles.append(Trouble("reset", path, times))

    def page(self, path: str, times: int | None = None) -> None:
        """In place of the file there comes an error page of 635 bytes, as a good answer."""
        self.troubles.append(Trouble("page", path, times))

    def stall(self, path: str, times: int | None = None) -> None:
        """Half of the body is sent, and then nothing."""
        self.troubles.append(Trouble("stall", path, times))

    def slow(self, path: str, rate: float) -> None:
        """Bodies come at `rate` bytes per second."""
        self.rates[path] = rate

    def error(self, path: str, status: int = 500, times: int | None = None, **headers: str) -> None:
        """The answer is an error; an underscore in a header's name stands for a dash."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.troubles.append(Trouble("error", path, times, status, named))

    def trouble(self, kinds: tuple[str, ...], path: str) -> Trouble | None:
        """The trouble that this request meets, used up by one."""
        with self._lock:
            for trouble in self.troubles:
                if trouble.kind in kinds and trouble.times != 0 and re.search(trouble.path, path):
                    trouble.times = None if trouble.times is None else trouble.times - 1
                    return trouble
        return None

    def scan(self) -> None:
        """Find new repositories, and new commits of the known ones."""
        with self._lock:
            for folder in sorted(self.root.glob("[!.]*/[!.]*")):
                if folder.is_dir():
                    self._scan(folder)

    def _scan(self, folder: Path) -> None:
        paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and not p.name.startswith(".")]
        signature = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
        name = folder.relative_to(self.root).as_posix()
        repository = self.repositories.setdefault(name, Repository())
        if repository.signature == signature:
            return
        repository.signature = signature
        files = {p.relative_to(folder).as_posix(): self._keep(p) for p in paths}
        parent = repository.commits[-1].sha if repository.commits else ""
        content = json.dumps([name, parent, {n: b.sha256 for n, b in files.items()}])
        sha = hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest()
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        repository.commits.append(Commit(sha, date, files))

    def _keep(self, path: Path) -> Blob:
        copy = self.blobs / f"new-{threading.get_ident()}"
        shutil.copyfile(path, copy)
        with copy.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = copy.stat().st_size
        lfs = path.suffix in LFS_SUFFIXES or size > LFS_BYTES
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()
        content = pointer if lfs else copy.read_bytes()
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        copy.replace(self.blobs / sha256)
        return Blob(size, sha256, oid, lfs)

    def find(self, name: str, revision: str = "main") -> tuple[Repository | None, Commit | None]:
        """The repository and its commit; `revision` is `main` or a commit."""
        with self._lock:
            if not re.fullmatch(r"[0-9a-f]{40}", revision):
                self.scan()
            repository = self.repositories.get(name)
            if repository is None:
                return None, None
            if revision in ("main", "refs/heads/main", "v1", "refs/heads/v1"):
                return repository, repository.commits[-1]
            return repository, next((c for c in repository.commits if c.sha == revision), None)


_NAME = r"(?P<repo>[^/]+/[^/]+)"


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"
    routes = (
        (rf"/api/models/{_NAME}/tree/(?P<revision>[^/]+)/?(?P<path>.*)", "tree"),
        (rf"/api/models/{_NAME}/paths-info/(?P<revision>[^/]+)", "paths_info"),
        (rf"/api/models/{_NAME}/commits/(?P<revision>[^/]+)", "commits"),
        (rf"/api/models/{_NAME}/refs", "refs"),
        (rf"/api/models/{_NAME}/revision/(?P<revision>[^/]+)", "info"),
        (rf"/api/models/{_NAME}", "info"),
        (r"/api/models", "models"),
        (rf"/api/kernels/{_NAME}/tree/(?P<revision>[^/]+)/?(?P<path>.*)", "tree"),
        (rf"/api/kernels/{_NAME}/refs", "refs"),
        (rf"/kernels/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
        (r"/api/organizations/(?P<repo>[^/]+)/overview", "organization"),
        (rf"/{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
    )

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.hub.requests.append(f"{self.command} {path}")
        self.query = parse_qs(url.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.form = parse_qs(body.decode("utf-8", "replace"))
        if trouble := self.hub.trouble(("error",), path):
            return self.answer({"error": "planted"}, trouble.status, trouble.headers)
        for pattern, name in self.routes:
            if match := re.fullmatch(pattern, path):
                return self.dispatch(name, **match.groupdict())
        return self.refuse(404, "no such page")

    do_HEAD = do_POST = do_GET

    def dispatch(self, name: str, repo: str = "", revision: str = "main", path: str = "") -> None:
        if name == "models":
            return self.models()
        if name == "organization":
            return self.answer({"name": repo, "trustedKernelPublisher": repo in self.hub.publishers})
        repository, commit = self.hub.find(repo, revision)
        if repository is None:
            return self.refuse(404, "Repository not found", "RepoNotFound")
        if repository.gated:
            return self.refuse(403, "Access to this model is restricted", "GatedRepo")
        if commit is None:
            return self.refuse(404, "Invalid rev id", "RevisionNotFound")
        match name:
            case "info":
                return self.answer(_info(repo, repository, commit, full=True, blobs=bool(self.query.get("blobs"))))
            case "tree":
                prefix = f"{path}/" if path else ""
                if self.path.startswith("/api/kernels/") and self.query.get("recursive") != ["true"]:
                    below = {n.removeprefix(prefix).split("/")[0] for n in commit.files if n.startswith(prefix)}
                    return self.answer([{"type": "directory", "path": prefix + n, "oid": "0" * 40} for n in below])
                return self.answer([_entry(n, b) for n, b in commit.files.items() if n.startswith(prefix)])
            case "paths_info":
                wanted = self.form.get("paths", [])
                return self.answer([_entry(n, b) for n, b in commit.files.items() if n in wanted])
            case "commits":
                return self.answer(
                    [
                        {"id": c.sha, "title": "push", "message": "", "authors": [], "date": c.date}
                        for c in reversed(repository.commits)
                    ]
                )
            case "refs":
                names = ("main", "v1") if self.path.startswith("/api/kernels/") else ("main",)
                newest = repository.commits[-1].sha
                branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": newest} for n in names]
                return self.answer({"branches": branches, "tags": [], "converts": []})
            case _:
                return self.resolve(commit, path)

    def models(self) -> None:
        self.hub.scan()
        author = self.query.get("author", [""])[0]
        search = self.query.get("search", [""])[0]
        limit = int(self.query.get("limit", ["1000"])[0])
        found = [
            _info(name, repository, repository.commits[-1], full=bool(self.query.get("full")))
            for name, repository in self.hub.repositories.items()
            if (not author or name.split("/")[0] == author) and search in name
        ]
        key = "createdAt" if self.query.get("sort", [""])[0] == "createdAt" else "lastModified"
        self.answer(sorted(found, key=lambda model: model[key], reverse=True)[:limit])

    def resolve(self, commit: Commit, name: str) -> None:
        blob = commit.files.get(name)
        if blob is None:
            return self.refuse(404, "Entry not found", "EntryNotFound")
        path = unquote(urlsplit(self.path).path)
        if self.command == "GET" and self.hub.trouble(("page",), path):
            return self.answer_bytes(b"<!DOCTYPE html>" + b" " * 620, "text/html")
        begin, end = 0, blob.size
        if self.hub.ranges and (match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))):
            begin = int(match[1])
            end = min(int(match[2]) + 1, blob.size) if match[2] else blob.size
            if begin >= end:
                return self.refuse(416, "Range not satisfiable")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{blob.size}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{blob.etag}"')
        self.send_header("X-Repo-Commit", commit.sha)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        if blob.lfs:
            self.send_header("X-Linked-Etag", f'"{blob.sha256}"')
            self.send_header("X-Linked-Size", str(blob.size))
        self.end_headers()
        if self.command != "HEAD":
            self.send_file(self.hub.blobs / blob.sha256, begin, end)

    def send_file(self, path: Path, begin: int, end: int) -> None:
        url = unquote(urlsplit(self.path).path)
        trouble = self.hub.trouble(("corrupt", "cut", "reset", "stall"), url)
        rate = next((rate for pattern, rate in self.hub.rates.items() if re.search(pattern, url)), None)
        with path.open("rb") as file:
            if not trouble:
                return self.send_range(file, begin, end, rate)
            file.seek(begin)
            left = end - begin
            if trouble and trouble.kind != "corrupt":
                left //= 2
            last = left
            while left:
                piece = bytearray(file.read(min(left, PIECE)))
                left -= len(piece)
                if trouble and trouble.kind == "corrupt" and not left:
                    piece[-1] ^= 1  # the last byte: tensor data, not the header
                self.wfile.write(piece)
                self.hub.sent += len(piece)
        if trouble and trouble.kind == "stall":
            self.wfile.flush()
            self.hub.closing.wait(600)
        if trouble and trouble.kind == "reset":
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if trouble and trouble.kind != "corrupt" and last < end - begin:
            self.close_connection = True

    def send_range(self, file: BinaryIO, begin: int, end: int, rate: float | None) -> None:
        """By the kernel alone, so that this hub is not what a measurement measures."""
        while begin < end:
            count = os.sendfile(self.connection.fileno(), file.fileno(), begin, min(end - begin, PIECE))
            self.hub.sent += count
            begin += count
            if rate:
                self.hub.closing.wait(count / rate)

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.answer_bytes(json.dumps(value).encode(), "application/json", status, headers)

    def answer_bytes(self, body: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, message: str, code: str | None = None) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer({"error": message}, status, headers)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):  # the other side hung up, or this one did as a test wanted
            self.close_connection = True

    def finish(self) -> None:
        with suppress(ConnectionError, ValueError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: `requests` has it."""


def _info(name: str, repository: Repository, commit: Commit, *, full: bool, blobs: bool = False) -> dict[str, Any]:
    info: dict[str, Any] = {
        "_id": hashlib.sha256(name.encode()).hexdigest()[:24],
        "id": name,
        "modelId": name,
        "author": name.split("/")[0],
        "sha": commit.sha,
        "lastModified": commit.date,
        "createdAt": repository.commits[0].date,
        "private": False,
        "gated": "manual" if repository.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
    }
    if full:
        info["siblings"] = [{"rfilename": n} | (_blob(b) if blobs else {}) for n, b in commit.files.items()]
    return info


def _blob(blob: Blob) -> dict[str, Any]:
    lfs = {"lfs": {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}} if blob.lfs else {}
    return {"size": blob.size, "blobId": blob.oid} | lfs


def _entry(name: str, blob: Blob) -> dict[str, Any]:
    lfs = {"lfs": {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}} if blob.lfs else {}
    return {"type": "file", "path": name, "size": blob.size, "oid": blob.oid} | lfs


def main() -> None:
    """Serve a folder of repositories until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, help="bytes per second of each connection")
    arguments = parser.parse_args()
    with LocalHub(arguments.root, arguments.port) as hub:
        if arguments.rate:
            hub.slow("", arguments.rate)
        print(f"HF_ENDPOINT={hub.url}", flush=True)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    main()
