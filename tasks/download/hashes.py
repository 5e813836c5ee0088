"""SHA-256 of many files at once, each computed once for as long as the file stays as it is."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from day0 import deadline
from day0.files import sha256_file
from day0.home import home
from day0.progress import report

logger = logging.getLogger("day0.download")


class FileChanged(OSError):
    """A file was written to while it was read."""


class HashCache:
    """Digests in `$DAY0_HOME/hashes.sqlite`, each bound to the file's inode, size, mtime and ctime.

    The ctime is set by the kernel: a file that was changed and given its old mtime back is noticed too. Bytes that
    rot on the disk change none of these; `--rehash` reads them again.
    """

    _TABLE = """CREATE TABLE IF NOT EXISTS hashes (
        path TEXT PRIMARY KEY, device INTEGER, inode INTEGER, size INTEGER, mtime INTEGER, ctime INTEGER, sha256 TEXT
    )"""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or home() / "hashes.sqlite"

    def get(self, path: Path, stat: os.stat_result) -> str | None:
        """The digest of `path`, if it was computed when the file was as `stat` says."""
        try:
            with closing(self._open()) as database:
                row = database.execute("SELECT * FROM hashes WHERE path = ?", [str(path)]).fetchone()
        except (sqlite3.Error, OSError) as error:
            logger.warning("digests are computed anew: %s cannot be used (%s)", self.path, error)
            return None
        return row[6] if row and row[1:6] == _identity(stat) else None

    def put(self, path: Path, stat: os.stat_result, sha256: str) -> None:
        """Note the digest of `path` as `stat` describes it."""
        try:
            with closing(self._open()) as database, database:
                row = (str(path), *_identity(stat), sha256)
                database.execute("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        except (sqlite3.Error, OSError) as error:
            logger.warning("a digest is not kept: %s cannot be used (%s)", self.path, error)

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self.path, timeout=30)
        database.execute(self._TABLE)
        return database


def hash_files(paths: Iterable[Path], *, rehash: bool = False) -> dict[Path, str | OSError]:
    """SHA-256 of each file, computed on all cores, or the error that kept it from being read.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    wanted = list(dict.fromkeys(paths))
    cache = HashCache()
    total = sum(path.stat().st_size for path in wanted if path.exists())
    limit = deadline.current()
    done = 0
    lock = threading.Lock()

    def add(count: int) -> None:
        nonlocal done
        limit.check()
        with lock:
            done += count

    def one(path: Path) -> str | OSError:
        try:
            return _hash(path, cache, rehash, add)
        except OSError as error:
            return error

    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 16)) as pool:
        futures = [pool.submit(one, path) for path in wanted]
        results: dict[Path, str | OSError] = {}
        for path, future in zip(wanted, futures, strict=True):
            while True:
                try:
                    results[path] = future.result(timeout=0.5)
                    break
                except TimeoutError:
                    if future.done():
                        raise
                finally:
                    report("hashing", done, total, "B")
    return results


def _hash(path: Path, cache: HashCache, rehash: bool, add: Callable[[int], None]) -> str:
    before = path.stat()
    if not rehash and (known := cache.get(path, before)):
        add(before.st_size)
        return known
    digest = sha256_file(path, add)
    if _identity(path.stat()) != _identity(before):
        raise FileChanged(f"{path.name} changed while it was read")
    cache.put(path, before, digest)
    return digest


def _identity(stat: os.stat_result) -> tuple[int, int, int, int, int]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
