"""The files of a release at the same time, by plain HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

from day0 import deadline
from day0.errors import CheckFailed, Day0Error, InputError
from day0.landing import AT_ONCE
from day0.progress import report
from tasks.download.direct import fetch_whole
from tasks.download.source import Hub, HubRelease

logger = logging.getLogger("day0.download")

CONNECTIONS = AT_ONCE


class _Stopped(Exception):
    """Another file failed for a reason that is this one's too."""


def fetch_files(hub: Hub, release: HubRelease, names: list[str], place: Path, begun: Path) -> dict[str, str]:
    """Fetch files of a release to `place`, in about their order; what is unfinished lies in `begun`.

    Returns:
        The files that came with a wrong digest, and how it differs. Nothing of them is kept.

    Raises:
        InputError: this account may not read a file, or the disk is full. No further file is begun.
        Unavailable: the hub does not send a file. The others are fetched nevertheless.
    """
    total = sum(release.files[name].size or 0 for name in names)
    done = dict.fromkeys(names, 0)
    stop = threading.Event()

    def one(name: str) -> None:
        def progress(count: int) -> None:
            if stop.is_set():
                raise _Stopped(name)
            done[name] = count

        expected = release.files[name]
        fetch_whole(hub.address(release, name), expected, place / name, begun / name, progress)

    damaged: dict[str, str] = {}
    failed: list[BaseException] = []
    with ThreadPoolExecutor(max_workers=CONNECTIONS) as pool:
        waiting: dict[Future[None], str] = {pool.submit(copy_context().run, one, name): name for name in names}
        while waiting:
            ended, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            report("downloading", sum(done.values()), total, "B")
            for future in ended.union(future for future in waiting if future.cancelled()):  # `wait` ignores those
                name = waiting.pop(future)
                error = None if future.cancelled() else future.exception()
                if isinstance(error, CheckFailed):
                    damaged[name] = str(error)
                elif error is not None:
                    failed.append(error)
                    if isinstance(error, InputError) or not isinstance(error, Day0Error):
                        stop.set()
                        pool.shutdown(wait=False, cancel_futures=True)
    deadline.current().check()
    _remove_empty(begun)
    if failed:
        raise next((error for error in failed if not isinstance(error, _Stopped)), failed[0])
    return damaged


def fetch_again(hub: Hub, release: HubRelease, name: str, place: Path, begun: Path) -> str | None:
    """Fetch one file that is damaged; returns how what the hub sends differs, or None.

    Raises:
        InputError, Unavailable: as `fetch_files`.
    """
    size = release.files[name].size
    what = f"fetching {name} again"
    logger.warning("%s is damaged and is fetched again by another way", name)
    try:
        progress = _told(what, size)
        fetch_whole(hub.address(release, name), release.files[name], place / name, begun / name, progress, again=True)
    except CheckFailed as error:
        return str(error)
    _remove_empty(begun)
    return None


def _told(what: str, size: int | None) -> Callable[[int], None]:
    return lambda count: report(what, count, size, "B")


def _remove_empty(begun: Path) -> None:
    folders = [path for path in begun.rglob("*") if path.is_dir()]
    for folder in [*sorted(folders, reverse=True), begun]:
        with suppress(OSError):  # something in it is unfinished
            folder.rmdir()
