"""What a release's files should be: sizes and digests, from whoever knows them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from day0.checkpoint import unsafe_name
from day0.errors import InputError
from day0.files import write_json
from day0.strict_json import JsonFault, NotRegular, decode, read_capped
from tasks.download.listing import is_unsafe

MAX_MANIFEST_BYTES = 64 << 20

#: Manifests that a release may bring along, in the order in which they are looked for.
IN_FOLDER = ("SHA256SUMS", "sha256.json")

_LISTING = re.compile(r"\\?([0-9a-fA-F]{64})  ?\*?(.+)")  # `sha256sum`: digest, space, space or *, name
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Expected:
    """What a file should be. A hub knows small files by the id of their git blob, large ones by SHA-256."""

    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Expected files by name, and where that was learnt."""

    files: Mapping[str, Expected]
    origin: Literal["hub", "manifest"]
    where: str
    """For people: the path or the hub."""
    complete: bool = True
    """Whether a file that it does not list is one that the release does not have."""


def read_manifest(path: Path) -> Manifest:
    """A manifest file: a `sha256sum` listing, or `{"files": {name: {"size": n, "sha256": hex}}}`.

    Raises:
        InputError: it cannot be read, is neither, or lists nothing.
    """
    try:
        data = read_capped(path, MAX_MANIFEST_BYTES)
        files = _from_json(decode(data)) if data.lstrip()[:1] == b"{" else _from_listing(data)
    except OSError as error:
        raise InputError(f"the manifest {path} cannot be read: {error.strerror}") from error
    except (JsonFault, NotRegular) as error:
        raise InputError(f"the manifest {path} {error}") from error
    if not files:
        raise InputError(f"the manifest {path} lists no files")
    for name in files:
        if problem := unsafe_name(name):
            raise InputError(f"the manifest {path} lists an unusable name: {problem}")
    return Manifest(files, "manifest", str(path))


def recorded(root: Path) -> Manifest | None:
    """The digests that were recorded when the folder was made: by day0, by its publisher, or by the hub's client."""
    if record_path(root).is_file():
        return hub_manifest(*read_record(root))
    for name in IN_FOLDER:
        if (root / name).is_file():
            return read_manifest(root / name)
    return _hub_client_folder(root) or _hub_cache(root)


def record_path(root: Path) -> Path:
    """Where day0 notes what the hub said about a folder that it fetched: beside the folder, not in it."""
    return root.parent / f"{root.name}.hub.json"


def write_record(root: Path, hub: str, files: Mapping[str, Expected]) -> None:
    """Note what the hub says about `root`: all files of the release, also those that were not fetched."""
    rows = {
        name: {key: value for key, value in vars(expected).items() if value is not None}
        for name, expected in sorted(files.items())
    }
    write_json(record_path(root), {"hub": hub, "files": rows})


def read_record(root: Path) -> tuple[str, dict[str, Expected]]:
    """What `write_record` wrote for `root`: the hub, and the release's files.

    Raises:
        InputError: it is not what day0 writes.
    """
    path = record_path(root)
    try:
        value = decode(read_capped(path, MAX_MANIFEST_BYTES))
        return value["hub"], {name: Expected(**entry) for name, entry in value["files"].items()}
    except (OSError, JsonFault, NotRegular, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); delete it and fetch the release again") from error


def hub_manifest(hub: str, files: Mapping[str, Expected]) -> Manifest:
    """What a fetched folder should hold: the release without what day0 never fetches."""
    return Manifest({n: files[n] for n in sorted(files) if not is_unsafe(n)}, "hub", f"the hub {hub}")


def _from_json(value: Any) -> dict[str, Expected]:
    listed = value.get("files") if isinstance(value, dict) else None
    if not isinstance(listed, dict):
        raise JsonFault('must be {"files": {name: {"size": n, "sha256": hex}}}')
    files = {}
    for name, entry in listed.items():
        if not isinstance(entry, dict) or not entry or entry.keys() - {"size", "sha256"}:
            raise JsonFault(f'must give "size" and "sha256" for {name[:80]!r}, and nothing else')
        size, digest = entry.get("size"), entry.get("sha256")
        if size is not None and (type(size) is not int or size < 0):
            raise JsonFault(f"gives a size for {name[:80]!r} that is not a whole number")
        if digest is not None and not (isinstance(digest, str) and _SHA256.fullmatch(digest.lower())):
            raise JsonFault(f"gives a sha256 for {name[:80]!r} that is not 64 hexadecimal digits")
        files[name] = Expected(size, digest and digest.lower())
    return files


def _from_listing(data: bytes) -> dict[str, Expected]:
    files: dict[str, Expected] = {}
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise JsonFault("is neither JSON nor a sha256sum listing") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not (match := _LISTING.fullmatch(line)):
            raise JsonFault(f"is neither JSON nor a sha256sum listing (line {number})")
        name = match[2].removeprefix("./")
        expected = Expected(sha256=match[1].lower())
        if files.setdefault(name, expected) != expected:
            raise JsonFault(f"gives two digests for {name!r} (line {number})")
    return files


def _from_etag(etag: str) -> Expected | None:
    """A hub's ETag is the SHA-256 of a large file and the git blob id of a small one."""
    if _SHA256.fullmatch(etag):
        return Expected(sha256=etag)
    return Expected(git_sha1=etag) if _SHA1.fullmatch(etag) else None


def _hub_client_folder(root: Path) -> Manifest | None:
    """`hf download --local-dir` notes commit, ETag and time of each file in three lines."""
    notes = root / ".cache" / "huggingface" / "download"
    files = {}
    for note in sorted(notes.rglob("*.metadata")) if notes.is_dir() else ():
        lines = read_capped(note, 4096).decode("utf-8", "replace").splitlines()
        if len(lines) >= 2 and (expected := _from_etag(lines[1].strip())):
            files[note.relative_to(notes).as_posix().removesuffix(".metadata")] = expected
    return Manifest(files, "hub", str(notes), complete=False) if files else None


def _hub_cache(root: Path) -> Manifest | None:
    """In a hub cache every file is a link to a blob that is named by its ETag."""
    if root.resolve().parent.name != "snapshots":
        return None
    files = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink() and (expected := _from_etag(os.path.basename(os.readlink(path)))):
            files[path.relative_to(root).as_posix()] = expected
    return Manifest(files, "hub", "the names of the hub cache's blobs", complete=False) if files else None
