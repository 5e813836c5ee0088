"""The folder that a run writes to until it is complete: hidden, beside its destination, found again by a later run."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from day0.checkpoint import Checkpoint
from day0.errors import InputError
from tasks.reshard.writes import WritePlan

_FORMAT = 2  # of what is kept between runs; a new one never takes up what an old one left

log = logging.getLogger("day0.reshard")


@dataclass(frozen=True)
class Partial:
    """`root` becomes the destination; `journal` says what in it is done."""

    root: Path
    journal: Path


def plan_key(plan: WritePlan, checkpoint: Checkpoint) -> str:
    """A digest of all that decides which bytes are written where, apart from the source's data."""
    sha = hashlib.sha256(repr((_FORMAT, plan.layout, plan.engine, plan.tp, plan.pp, plan.ep)).encode())
    for name in sorted(plan.streams):
        header, streams = checkpoint.files[name], plan.streams[name]
        read = [
            (len(s.pieces), s.conversion, [(t.file, t.begin, t.end, t.dtype, t.shape) for t in s.inputs])
            for s in streams
        ]
        sha.update(repr((name, header.file_bytes, header.data_start, read)).encode())
        pieces = chain.from_iterable(stream.pieces for stream in streams)
        sha.update(array("q", chain.from_iterable(pieces)).tobytes())
    for file in plan.files:
        sha.update(repr((file.name, file.nbytes, len(file.header))).encode())
        sha.update(file.header)
    for fill in plan.fills:
        sha.update(repr((fill.target, fill.target_offset, fill.pattern, fill.count)).encode())
    return sha.hexdigest()


@contextmanager
def resumable_folder(destination: Path, key: str, partials: Path | None = None) -> Iterator[Partial]:
    """A folder that takes the name `destination` when the body returns.

    Where the body ends otherwise, what its journal has verified stays, and the next call with the same `key` gives
    it again. It lies beside the destination, or in the folder `partials` (of the same file system): then under a name
    that depends on the key alone.

    Raises:
        InputError: the destination is there and not empty, or another run is writing to it.
    """
    refuse_occupied(destination)
    place = partials or destination.parent
    prefix = f".{destination.name}." if partials is None else "."
    folder = place / f"{prefix}{key[:16]}.partial"
    lock = place / (f"{prefix}lock" if partials is None else f".{key[:16]}.lock")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with _only_run(lock, destination):
            partial = _make(folder)
            try:
                yield partial
                refuse_occupied(destination)
                _sync_folders(partial.root)
                destination.parent.mkdir(parents=True, exist_ok=True)
                os.replace(partial.root, destination)
                _sync(destination.parent)
            except BaseException:
                if not partial.journal.exists():
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)
            if partials is None:
                _remove_others(place, destination.name)
    except OSError as error:
        raise InputError(f"{error.filename or destination} cannot be written: {error.strerror}") from error


def refuse_occupied(destination: Path) -> None:
    """Raise InputError unless `destination` is absent or an empty folder."""
    if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
        raise InputError(f"{destination} is not a folder; give a new folder to write to")
    if destination.is_dir() and any(destination.iterdir()):
        raise InputError(f"{destination} is not empty; give a new folder, or remove what is in it")


@contextmanager
def _only_run(path: Path, destination: Path) -> Iterator[None]:
    """Hold the lock at `path`, which the kernel frees however this process ends; the file goes when the body ends."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(f"another run is writing to {destination} now; wait for its end, or end it") from None
        os.close(descriptor)  # the run before removed the file between the two calls
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _make(folder: Path) -> Partial:
    partial = Partial(folder / "tree", folder / "journal")
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.geteuid()):
        raise InputError(f"{folder} is in the way: it is not this user's folder; remove it")
    folder.mkdir(mode=0o700, exist_ok=True)
    partial.root.mkdir(exist_ok=True)
    partial.root.chmod(0o755)
    if partial.journal.exists():
        log.info("going on from what an earlier run left in %s", folder)
    return partial


def _remove_others(place: Path, name: str) -> None:
    """What runs with other plans for the same destination left, which this run has now made obsolete."""
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.partial")
    for path in place.iterdir():
        if pattern.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _sync_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        _sync(Path(folder))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
