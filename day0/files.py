"""Files: hashing, atomic writing, and the record of one file that a later reader can check."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict

CHUNK = 8 << 20


class FileRef(BaseModel):
    """A file beside an artifact: its path relative to the artifact's tree, its size in bytes, its SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    bytes: int
    sha256: str


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file, read once in large pieces; `progress` is told the bytes of each piece."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(min(CHUNK, os.fstat(file.fileno()).st_size or 1))
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            if progress:
                progress(count)
    return digest.hexdigest()


def git_blob_sha1(path: Path) -> str:
    """The object id that git (and so a hub, for small files) gives to a file's content."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def file_ref(root: Path, name: str) -> FileRef:
    """The record of `root/name`, hashed now."""
    path = root / name
    return FileRef(name=name, bytes=path.stat().st_size, sha256=sha256_file(path))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write `path` under a temporary name; it appears under its own only when whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def canonical_json(value: Any) -> bytes:
    """The one spelling of a JSON value that digests are taken of: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value's canonical spelling."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def folder_digest(folder: Path) -> str:
    """SHA-256 over the files of a folder by their names in it, but Python's own leavings; of nothing where it is not
    there."""
    files = [p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts] if folder.is_dir() else []
    return digest_of({path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(files)})
