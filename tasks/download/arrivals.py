"""Files that a hub's client brings are hashed as they land: when the last is there, little is left to do."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

from day0 import deadline
from day0.hash_cache import HashCache, claimed
from day0.landing import followed
from day0.progress import report
from tasks.download.hashes import hash_file
from tasks.download.source import HubRelease

logger = logging.getLogger("day0.download")

FOLLOWER_PATIENCE = 60.0
"""Seconds in which those who read along hash nothing, after which they are not waited for."""
_POLL = 0.2


class _Stopped(Exception):
    """The transfer is over: what is not hashed by now is left to the verification."""


def whole(release: HubRelease, place: Path, name: str) -> bool:
    """Whether all bytes of a file are there; they may be wrong."""
    path = place / name
    return path.is_file() and path.stat().st_size == release.files[name].size


@contextmanager
def hashed_as_they_land(release: HubRelease, names: list[str], place: Path, folder: Path) -> Iterator[None]:
    """While the body lets files appear in `place`, hash each that is whole, unless somebody reads it anyway."""
    over = threading.Event()
    thread = threading.Thread(target=copy_context().run, args=(_hash_arrivals, release, names, place, folder, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _hash_arrivals(release: HubRelease, names: list[str], place: Path, folder: Path, over: threading.Event) -> None:
    limit = deadline.current()

    def check(_count: int) -> None:
        limit.check()
        if over.is_set():
            raise _Stopped

    left = [name for name in names if release.files[name].sha256]
    futures: list[Future[str]] = []
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) - 1)) as pool:
        while left and not over.wait(_POLL):
            landed = [] if followed(folder) else [name for name in left if whole(release, place, name)]
            left = [name for name in left if name not in landed]
            futures += [pool.submit(copy_context().run, hash_file, place / name, progress=check) for name in landed]
    for future in futures:
        error = future.exception()
        if error and not isinstance(error, _Stopped):
            logger.warning("a file is hashed at the end, not as it landed: %s", error)


def wait_for_followers(release: HubRelease, names: list[str], place: Path, folder: Path) -> None:
    """Let those who read along hash what is not hashed yet, for as long as they get on."""
    limit = deadline.current()
    cache = HashCache()
    left = [name for name in names if name.endswith(".safetensors") and whole(release, place, name)]
    since = time.monotonic()
    while followed(folder):
        unknown = [name for name in left if cache.get((place / name).stat()) is None]
        if len(unknown) < len(left) or any(claimed(place / name) for name in unknown):
            since = time.monotonic()
        if not unknown:
            return
        if time.monotonic() - since > FOLLOWER_PATIENCE:
            logger.warning("who reads along does not get on; %d files are hashed here", len(unknown))
            return
        left = unknown
        limit.check()
        report("hashing as others read", len(names) - len(left), len(names), "files")
        time.sleep(_POLL)
