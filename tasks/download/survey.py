"""A release before its weights are there: config, tokenizer and index fetched and checked, of each shard the header.

A shard is a sparse file of its right size with its real first bytes, so that whatever reads no more than headers
works on the survey as on the release. The folder is another than the release's and holds a marker that makes any
verification fail: nobody can take it for weights.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, TypeVar

from day0 import deadline
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import MAX_INDEX_BYTES, MAX_SHARDS, Examination, examine_folder
from day0.errors import CheckFailed, InputError
from day0.files import FileRef
from day0.progress import report
from day0.release import Release
from day0.safetensors_header import MAX_HEADER_BYTES
from day0.strict_json import JsonFault, NotRegular, decode, read_capped
from day0.verdict import Check, Verdict
from tasks.download.direct import connection, read_range
from tasks.download.folder import listing_digest
from tasks.download.hub import find, folder_of
from tasks.download.listing import is_unsafe
from tasks.download.manifest import Expected
from tasks.download.source import Hub, HubRelease
from tasks.download.space import not_written

T = TypeVar("T")
Read = Callable[[str, int, int], bytes]

MARKER = "weights.incomplete"
"""Says what the folder is; by its name a verification fails."""

CONNECTIONS = 8
_FIRST = 256 << 10  # holds most headers: one request a shard
_LENGTH = 8
_SMALL = 1 << 20
_TEXTS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".jsonl", ".yaml")
_ATTEMPTS = 3


def survey_folder(source: Release, listing: str | None) -> Snapshot:
    """The survey of a folder: its headers, where they lie; nothing is hashed. `listing` is the digest of its state.

    Raises:
        InputError: it is no folder.
    """
    assert source.path is not None
    found = examine_folder(source.path)
    return Snapshot(
        checks=_checks(found, None),
        source=source.source,
        name=source.name,
        revision=listing or listing_digest(source.path),
        location=str(source.path),
        bytes=sum(header.file_bytes for header in found.files.values()),
        tensors=len(found.tensors),
        faults=tuple(found.faults),
        digests_from="none",
        complete=False,
        lands=str(source.path),
    )


def survey_hub(hub: Hub, source: Release, revision: str | None) -> Snapshot:
    """The survey of a hub's release; what was fetched before is not asked for again.

    Raises:
        InputError: there is no such repository or revision, or it may not be read.
        CheckFailed: a small file comes with another digest than the hub lists.
        Unavailable: the hub does not answer.
    """
    release = find(hub, source, revision)
    folder = folder_of(source, release.commit)
    location = folder.with_name(f"{folder.name}.survey")
    with deadline.file_lock(folder.with_name(f"{folder.name}.survey.lock")), _reader(hub, release, folder) as read:
        digests = _Survey(release, read, location).take()
    found = examine_folder(location)
    files = tuple(
        FileRef(name=name, bytes=(location / name).stat().st_size, sha256=digest)
        for name, digest in sorted(digests.items())
    )
    wanted = [name for name in release.files if not is_unsafe(name)]
    return Snapshot(
        checks=_checks(found, len(files)),
        files=files,
        source=source.source,
        name=source.name,
        revision=release.commit,
        location=str(location),
        bytes=sum(release.files[name].size or 0 for name in wanted),
        tensors=len(found.tensors),
        faults=tuple(found.faults),
        digests_from="hub",
        complete=False,
        lands=str(folder),
    )


def _checks(found: Examination, files: int | None) -> tuple[Check, ...]:
    tensors = {"tensors": len(found.tensors)}
    if found.faults:
        first = found.faults[0]
        reason = ": ".join(filter(None, [first.file, first.tensor, first.detail]))
        more = f" (and {len(found.faults) - 1} more)" if found.faults[1:] else ""
        structure = Check(name="structure", verdict=Verdict.FAIL, reason=reason + more, measured=tensors)
    else:
        reason = f"{len(found.tensors):,} tensors agree with their index, by headers that nobody vouches for yet"
        structure = Check(name="structure", verdict=Verdict.PASS, reason=reason, measured=tensors)
    reason = "a survey: the weights are not there, and no content was checked"
    if files is not None:
        reason = "a survey: the weights are not there; the small files are what the hub says"
    return structure, Check(name="digests", verdict=Verdict.SKIPPED, reason=reason)


@contextmanager
def _reader(hub: Hub, release: HubRelease, folder: Path) -> Iterator[Read]:
    """What reads a range of a file: from the release as it was fetched, where that is so, else from the hub."""
    if folder.is_dir():

        def local(name: str, begin: int, end: int) -> bytes:
            with (folder / name).open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)

        yield local
        return
    with connection() as client:

        def remote(name: str, begin: int, end: int) -> bytes:
            return read_range(client, hub.address(release, name), begin, end, _size(release, name))

        yield remote


class _Survey:
    """One survey on its way to `location`."""

    def __init__(self, release: HubRelease, read: Read, location: Path) -> None:
        self.release, self.read, self.location = release, read, location
        names = sorted(name for name in release.files if not is_unsafe(name))
        self.shards = [name for name in names if name.endswith(".safetensors")]
        self.small = [name for name in names if name not in set(self.shards) and self._is_small(name)]

    def take(self) -> dict[str, str]:
        """Bring the folder about, or keep a sound one; returns SHA-256 by name, for the shards what the hub states."""
        if (kept := self._kept()) is not None:
            return kept
        folder = self.location.with_name(f".{self.location.name}.tmp")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            digests = self._fill(folder)
            shutil.rmtree(self.location, ignore_errors=True)
            os.replace(folder, self.location)
        except OSError as error:
            raise not_written(error, self.location) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return digests

    def _kept(self) -> dict[str, str] | None:
        """The digests of the folder as an earlier survey left it, if nothing is wrong with it."""
        if not (self.location / MARKER).is_file() or examine_folder(self.location).faults:
            return None
        digests = {}
        for name in [*self.small, *self._needed(self.location)]:
            expected, path = self.release.files[name], self.location / name
            if not path.is_file() or path.stat().st_size != expected.size:
                return None
            if name in self.shards and path.stat().st_size > _FIRST:
                digests[name] = expected.sha256
                continue
            data = path.read_bytes()
            if _difference(data, expected):
                return None
            digests[name] = hashlib.sha256(data).hexdigest()
        return {name: digest for name, digest in digests.items() if digest}

    def _fill(self, folder: Path) -> dict[str, str]:
        text = f"Only the headers of {self.release.repository} at {self.release.commit}; the weights are elsewhere.\n"
        (folder / MARKER).write_text(text)
        digests = dict(zip(self.small, _each("small files", self._whole(folder), self.small), strict=True))
        shards = self._needed(folder)
        stated = zip(shards, _each("headers", self._header(folder), shards), strict=True)
        return digests | {name: digest for name, digest in stated if digest}

    def _needed(self, folder: Path) -> list[str]:
        """The shards that an index names, or all where there is none that can be read."""
        named: set[Any] = set()
        for index in (name for name in self.small if "/" not in name and name.endswith(".safetensors.index.json")):
            try:
                weight_map = decode(read_capped(folder / index, MAX_INDEX_BYTES))["weight_map"]
                named |= {file for file in weight_map.values() if isinstance(file, str)}
            except (JsonFault, NotRegular, KeyError, TypeError, AttributeError):
                continue  # the examination tells what is wrong with it
        shards = [name for name in self.shards if name in named] or [n for n in self.shards if "/" not in n]
        if len(shards) > MAX_SHARDS:
            raise InputError(f"{self.release.repository} has {len(shards):,} shards; {MAX_SHARDS:,} are accepted")
        return shards

    def _whole(self, folder: Path) -> Callable[[str], str]:
        def fetch(name: str) -> str:
            expected = self.release.files[name]
            for attempt in range(1, _ATTEMPTS + 1):
                data = self.read(name, 0, _size(self.release, name))
                if (wrong := _difference(data, expected)) is None:
                    break
                if attempt == _ATTEMPTS:
                    raise CheckFailed(f"{name} of {self.release.repository}: {wrong}")
            _write(folder / name, data, len(data))
            return hashlib.sha256(data).hexdigest()

        return fetch

    def _header(self, folder: Path) -> Callable[[str], str | None]:
        def fetch(name: str) -> str | None:
            size = _size(self.release, name)
            if size <= _FIRST:
                return self._whole(folder)(name)
            data = self.read(name, 0, _FIRST)
            end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
            if _FIRST < end <= min(size, _LENGTH + MAX_HEADER_BYTES):
                data += self.read(name, _FIRST, end)
            _write(folder / name, data[: max(end, _LENGTH)], size)
            return self.release.files[name].sha256

        return fetch

    def _is_small(self, name: str) -> bool:
        size = _size(self.release, name)
        return size <= _SMALL or (size <= MAX_INDEX_BYTES and name.lower().endswith(_TEXTS))


def _each(what: str, work: Callable[[str], T], names: list[str]) -> list[T]:
    """`work` for each name, several at once, with the deadline of this thread. The first error ends it."""
    results = []
    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        futures = [pool.submit(copy_context().run, work, name) for name in names]
        try:
            for done, future in enumerate(futures, 1):
                results.append(future.result())
                report(what, done, len(names), "files")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    deadline.current().check()
    return results


def _size(release: HubRelease, name: str) -> int:
    size = release.files[name].size
    if size is None:
        raise InputError(f"{release.hub} does not say how large {name} of {release.repository} is")
    return size


def _difference(data: bytes, expected: Expected) -> str | None:
    if expected.size is not None and len(data) != expected.size:
        return f"it has {len(data):,} bytes, the hub says {expected.size:,}"
    if expected.sha256 and (actual := hashlib.sha256(data).hexdigest()) != expected.sha256:
        return f"its sha256 is {actual}, the hub says {expected.sha256}"
    blob = b"blob %d\0" % len(data) + data
    if expected.git_sha1 and (actual := hashlib.sha1(blob, usedforsecurity=False).hexdigest()) != expected.git_sha1:
        return f"its git sha1 is {actual}, the hub says {expected.git_sha1}"
    return None


def _write(path: Path, data: bytes, size: int) -> None:
    """A file of `size` bytes, of which `data` are the first; the others take no space."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)
