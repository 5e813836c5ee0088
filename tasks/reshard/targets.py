"""The files that are being written: opened when something comes for them, hashed as it comes, closed when whole."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from day0.architecture.slicing import Range
from day0.errors import CheckFailed
from tasks.reshard.hashing import Buffer, Control, FileHash, Helpers


@dataclass(frozen=True, slots=True)
class Target:
    """A target file as a shard's job needs it.

    `present` are the ranges that it has from the start (header, fills, what an earlier run wrote); `shards` counts
    the source shards that are still to bring something, or is 1 where none is and the file only wants finishing.
    """

    name: str
    nbytes: int
    present: tuple[Range, ...]
    shards: int
    hashed: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """A target file that is whole and on the disk. `sha256` is None where hashes are off."""

    name: str
    size: int
    mtime_ns: int
    sha256: str | None


class _Open:
    def __init__(self, descriptor: int, shards: int, sha: FileHash | None) -> None:
        self.descriptor, self.shards, self.sha = descriptor, shards, sha


class Targets:
    """Files below `root`, by the plan's numbers. Any thread may write to any of them."""

    def __init__(self, root: Path, targets: Mapping[int, Target], helpers: Helpers, control: Control) -> None:
        self._root, self._targets = root, targets
        self._helpers, self._control = helpers, control
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()

    def descriptor(self, number: int) -> int:
        return self._get(number).descriptor

    def put(self, number: int, offset: int, view: memoryview, buffer: Buffer | None, write: bool = True) -> None:
        """Write bytes (or only hash them, where they are in the file already); the buffer is held until hashed."""
        target = self._get(number)
        if write:
            write_at(target.descriptor, view, offset)
        if target.sha:
            target.sha.feed(offset, view, buffer)

    def shard_done(self, numbers: Iterable[int]) -> list[Finished]:
        """A shard has brought all it has for these targets: put it on the disk.

        Returns:
            Those that are whole now; they are closed.

        Raises:
            CheckFailed: a target should be whole, and is not.
        """
        finished = []
        for number in numbers:
            self._control.check()
            target = self._get(number)
            if target.shards > 1:  # before this shard counts as done: who comes last closes the file
                os.fdatasync(target.descriptor)
            with self._lock:
                target.shards -= 1
                whole = target.shards == 0
            if whole:
                finished.append(self._finish(number, target))
        return finished

    def close(self) -> None:
        with self._lock:
            for target in self._open.values():
                os.close(target.descriptor)
            self._open.clear()

    def _get(self, number: int) -> _Open:
        return self._open.get(number) or self._make(number)

    def _make(self, number: int) -> _Open:
        with self._lock:
            if (target := self._open.get(number)) is None:
                known = self._targets[number]
                descriptor = os.open(self._root / known.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                sha = None
                if known.hashed:
                    sha = FileHash(descriptor, self._helpers, self._control)
                    for begin, end in known.present:
                        sha.present(begin, end)
                target = self._open[number] = _Open(descriptor, known.shards, sha)
            return target

    def _finish(self, number: int, target: _Open) -> Finished:
        known = self._targets[number]
        try:
            digest = target.sha.finish(known.nbytes) if target.sha else None
        except ValueError as error:
            raise CheckFailed(f"{known.name}: {error}; the plan is not whole") from error
        os.fsync(target.descriptor)
        status = os.fstat(target.descriptor)
        with self._lock:
            del self._open[number]
        os.close(target.descriptor)
        return Finished(known.name, status.st_size, status.st_mtime_ns, digest)


def write_at(descriptor: int, view: memoryview, offset: int) -> None:
    """All of `view`, whatever the kernel takes at once."""
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
