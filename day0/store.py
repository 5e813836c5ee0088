"""The artifact store: content-addressed JSON, and the folders of large files that belong to it.

$DAY0_HOME/store/objects/ab/abcdef….json    an artifact: {"kind", "content"}; its name is its digest
$DAY0_HOME/store/trees/<stage>-<digest>/    the files that an artifact names
$DAY0_HOME/store/tmp/                       what is being made; nothing here is ever taken for an artifact
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from day0.artifacts.base import Artifact
from day0.errors import EvidenceMissing
from day0.files import FileRef, atomic_write, canonical_json, digest_of, sha256_file
from day0.home import home

A = TypeVar("A", bound=Artifact)


class Store:
    """Artifacts under `root`, by default `$DAY0_HOME/store`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or home() / "store"

    def put(self, artifact: Artifact) -> str:
        """Record an artifact's JSON; returns its digest. Writing the same again changes nothing."""
        digest = artifact.digest
        path = self._object(digest)
        if not path.is_file():
            with atomic_write(path) as file:
                file.write(canonical_json({"kind": artifact.kind, "content": artifact.to_json()}))
        return digest

    def read(self, digest: str) -> dict[str, Any]:
        """The artifact's `{"kind", "content"}`.

        Raises:
            EvidenceMissing: it is not there, or is no longer what its name says.
        """
        try:
            value: dict[str, Any] = json.loads(self._object(digest).read_bytes())
        except (OSError, ValueError) as error:
            raise EvidenceMissing(f"artifact {digest[:16]} is not in the store: {error}") from error
        if digest_of(value) != digest:
            raise EvidenceMissing(f"artifact {digest[:16]} in the store was changed; rerun the stage that made it")
        return value

    def get(self, digest: str, kind: type[A]) -> A:
        """The artifact, as its type."""
        value = self.read(digest)
        if value["kind"] != kind.kind:
            raise EvidenceMissing(f"artifact {digest[:16]} is a {value['kind']}, not a {kind.kind}")
        return kind.from_json(value["content"])

    def workspace(self) -> Path:
        """A new empty folder on the store's file system, for a stage to fill. Named after its process."""
        parent = self.root / "tmp"
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent, prefix=f"{os.getpid()}-"))

    def adopt(self, workspace: Path, name: str) -> Path:
        """Give a filled workspace its final name; a folder that had that name makes way and is removed."""
        final = self.root / "trees" / name
        final.parent.mkdir(parents=True, exist_ok=True)
        workspace.chmod(0o755)
        if final.exists():
            old = self.workspace()
            final.rename(old)
            workspace.rename(final)
            shutil.rmtree(old)
        else:
            workspace.rename(final)
        return final

    def sweep(self) -> None:
        """Remove what processes that no longer live left unfinished."""
        for path in (self.root / "tmp").glob("*"):
            if not alive(int(path.name.partition("-")[0])):
                shutil.rmtree(path, ignore_errors=True)

    def _object(self, digest: str) -> Path:
        return self.root / "objects" / digest[:2] / f"{digest}.json"


def stats_of(tree: Path, files: tuple[FileRef, ...]) -> dict[str, list[int]]:
    """Size, mtime and inode of each file: as long as they stay, its digest needs no new look."""
    return {file.name: _stat(tree / file.name) for file in files}


def changed_file(tree: Path, files: tuple[FileRef, ...], stats: dict[str, list[int]]) -> str | None:
    """What is wrong with the first file that is not what the artifact says, or None.

    A file whose size, mtime and inode are as recorded is taken to be unchanged; any other is hashed again.
    """
    for file in files:
        path = tree / file.name
        try:
            stat = _stat(path)
        except OSError:
            return f"{file.name} is gone"
        if stat == stats.get(file.name):
            continue
        if stat[0] != file.bytes or sha256_file(path) != file.sha256:
            return f"{file.name} was changed"
    return None


def _stat(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def alive(pid: int) -> bool:
    """Whether a process of that number lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
