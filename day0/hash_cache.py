"""SHA-256 of files, each computed once for as long as the file stays as it is, by whoever reads the file first.

A stage that reads a file anyway hashes it in the same pass; one that needs the digest meanwhile waits for that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from day0 import deadline
from day0.home import home

logger = logging.getLogger("day0.hashes")

_POLL = 0.05  # seconds between two looks whether another reader is done


class FileChanged(OSError):
    """A file was written to while it was read."""


class HashCache:
    """Digests in `$DAY0_HOME/hashes.sqlite`, each bound to the file's device, inode, size, mtime and ctime.

    The ctime is set by the kernel: a file that was changed and given its old mtime back is noticed too. The path is
    not part of it, so that a folder may be renamed. Bytes that rot on the disk change none of these; `--rehash` reads
    them again.
    """

    _TABLE = """CREATE TABLE IF NOT EXISTS hashes (
        path TEXT PRIMARY KEY, device INTEGER, inode INTEGER, size INTEGER, mtime INTEGER, ctime INTEGER, sha256 TEXT
    )"""
    _INDEX = "CREATE INDEX IF NOT EXISTS by_identity ON hashes (device, inode)"
    _FIND = "SELECT sha256 FROM hashes WHERE device = ? AND inode = ? AND size = ? AND mtime = ? AND ctime = ?"

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or home() / "hashes.sqlite"

    def get(self, stat: os.stat_result) -> str | None:
        """The digest of the file that `stat` describes, if it was computed when the file was exactly so."""
        try:
            with closing(self._open()) as database:
                row = database.execute(self._FIND, identity(stat)).fetchone()
        except (sqlite3.Error, OSError) as error:
            logger.warning("digests are computed anew: %s cannot be used (%s)", self.path, error)
            return None
        return row[0] if row else None

    def put(self, path: Path, stat: os.stat_result, sha256: str) -> None:
        """Note the digest of `path` as `stat` describes it."""
        try:
            with closing(self._open()) as database, database:
                row = (str(path), *identity(stat), sha256)
                database.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except (sqlite3.Error, OSError) as error:
            logger.warning("a digest is not kept: %s cannot be used (%s)", self.path, error)

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=30)
        database.execute(self._TABLE)
        database.execute(self._INDEX)
        return database


class Claim:
    """The right to be the one who hashes a file, while it is read from `descriptor`.

    `known` is the file's digest where somebody computed it before: then nothing need be hashed. `stat` is the file
    as it was when the claim was made.
    """

    def __init__(self, path: Path, descriptor: int, cache: HashCache, rehash: bool) -> None:
        self.path, self.descriptor, self._cache = path, descriptor, cache
        self.stat = os.fstat(descriptor)
        self.known = None if rehash else cache.get(self.stat)

    def record(self, sha256: str) -> str:
        """Make known what was read from `descriptor`; returns the digest.

        Raises:
            FileChanged: the file is not what it was when the claim was made.
        """
        if identity(os.fstat(self.descriptor)) != identity(self.stat):
            raise FileChanged(f"{self.path.name} changed while it was read")
        self._cache.put(self.path, self.stat, sha256)
        self.known = sha256
        return sha256


@contextmanager
def claim(
    path: Path, *, rehash: bool = False, waiting: Callable[[], None] = lambda: None, cache: HashCache | None = None
) -> Iterator[Claim]:
    """Open a file for reading as the one who hashes it; waits for another reader's claim on the same file.

    The claim is a lock of the kernel on the file itself: it holds between threads and between processes, and ends
    with its holder. A file system without such locks grants every claim.

    Args:
        rehash: do not take a digest that is known.
        waiting: called now and then while another reader has the claim.

    Raises:
        OSError: the file cannot be opened.
        StageTimeout, Cancelled: the time was up while waiting.
    """
    limit = deadline.current()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while not _locked(descriptor):
            limit.check()
            waiting()
            time.sleep(_POLL)
        yield Claim(path, descriptor, cache or HashCache(), rehash)
    finally:
        os.close(descriptor)


def claimed(path: Path) -> bool:
    """Whether somebody is hashing the file at this moment."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def identity(stat: os.stat_result) -> tuple[int, int, int, int, int]:
    """What changes whenever a file's content does."""
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.debug("this file system locks no files: %s", error)
    return True
