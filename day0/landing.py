"""A download that is under way, as seen by whoever reads its files while others still arrive.

All that the two sides know of each other lies in the file system, beside the folder that the release will get:

    COMMIT/             the whole release, every byte checked
    COMMIT.partial/     files that are whole, under their own names, and unfinished ones
    COMMIT.begun/       unfinished files that are written from front to back
    COMMIT.lock         held by whoever fetches
    COMMIT.follower     held by those who read along
    COMMIT.failed       why the last download ended without the release
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from day0 import deadline
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import PathFault, locate
from day0.errors import CheckFailed, Day0Error, EvidenceMissing
from day0.files import atomic_write

PATIENCE = 30.0
"""Seconds that a file is waited for while nobody fetches: a download that failed may be tried again."""
AT_ONCE = 8
"""Files that a download brings at the same time, at most: as many as the hub's own client."""
_POLL = 0.1
_LENGTH = 8  # bytes at the start of a safetensors file that hold the length of its header


class Landing:
    """The files of a release, each of which can be waited for. Works as well when all of them are there.

    Args:
        folder: where the whole release lies, or will.
        surveyed: a folder with the release's headers, each file as large as it will be; None: `folder` is whole.
        digests: SHA-256 that files should have, by name.
    """

    def __init__(self, folder: Path, surveyed: Path | None = None, digests: Mapping[str, str] | None = None) -> None:
        self.folder, self.surveyed, self.digests = folder, surveyed, dict(digests or {})

    @classmethod
    def of(cls, snapshot: Snapshot) -> Landing:
        """The landing of a snapshot: of a survey, what it announces; of a whole one, what is there."""
        digests = {file.name: file.sha256 for file in snapshot.files}
        location = Path(snapshot.location)
        if snapshot.complete:
            return cls(location, None, digests)
        return cls(Path(snapshot.lands or location), location, digests)

    def wait_for(self, name: str, sleep: Callable[[float], object] = time.sleep, *, begun: bool = False) -> Path:
        """Where a file lies, as soon as all its bytes are there. They need not be right: hash them while reading.

        Open the file at once: the folder is renamed when the last file is checked. What is open stays readable.

        Args:
            sleep: called ten times a second; may raise. A thread that has not its stage's deadline checks it there.
            begun: do not wait for the end of a file that is written from front to back: its path (`unfinished`) comes
                at once. What is in it may be thrown away and fetched again; whoever reads it has to hash what he reads.

        Raises:
            EvidenceMissing: the download ended without it, or none is running.
            CheckFailed: the file does not begin with the header that was surveyed.
            StageTimeout, Cancelled: the stage's time was up.
        """
        size = self._size(name)
        pause = self.pauses(name, sleep)
        while True:
            path = self._whole(name, size)
            if path:
                self._compare_header(name, path)
                return path
            arriving = begun_folder(self.folder) / name
            if begun and arriving.is_file():
                return arriving
            pause()

    def unfinished(self, path: Path) -> bool:
        """Whether a path that `wait_for` returned is of a file whose end was not waited for."""
        return path.is_relative_to(begun_folder(self.folder))

    def pauses(self, name: str, sleep: Callable[[float], object] = time.sleep) -> Callable[[], None]:
        """What to call as long as a file, or more of it, is waited for: it sleeps, and raises as `wait_for` does."""
        limit = deadline.current()
        idle_since = time.monotonic()

        def pause() -> None:
            nonlocal idle_since
            limit.check()
            now = time.monotonic()
            if _held(_beside(self.folder, "lock")):
                idle_since = now
            elif now - idle_since > PATIENCE:
                raise EvidenceMissing(f"{name} was not fetched: {self._why()}")
            sleep(_POLL)

        return pause

    def settle(self) -> None:
        """Wait until nobody fetches the release any more: it is there, or the download has ended without it."""
        limit = deadline.current()
        while _held(_beside(self.folder, "lock")):
            limit.check()
            time.sleep(_POLL)

    def follow(self) -> Following:
        """Announce one who will read all the shards: the download leaves their hashing to it. Ends with `close`."""
        return Following(self.folder)

    def _size(self, name: str) -> int | None:
        """Bytes that the file will have; None where that need not be known."""
        if self.surveyed is None:
            return None
        try:
            return locate(self.surveyed, name).stat().st_size
        except (PathFault, OSError) as error:
            raise EvidenceMissing(f"{name} was not surveyed: {error}") from error

    def _whole(self, name: str, size: int | None) -> Path | None:
        for place in (self.folder, partial(self.folder)):
            try:
                path = locate(place, name)
                stat = path.stat()
            except PathFault as fault:
                if fault.kind != "missing_shard":
                    raise EvidenceMissing(f"{place / name} cannot be read: {fault.detail}") from fault
                continue
            except FileNotFoundError:
                continue  # the folder got its final name between two looks
            if size is None or stat.st_size == size:
                return path
        return None

    def _compare_header(self, name: str, path: Path) -> None:
        """What was planned from the surveyed header must hold for the file: a range request proves nothing."""
        if self.surveyed is None or not name.endswith(".safetensors"):
            return
        with locate(self.surveyed, name).open("rb") as surveyed, path.open("rb") as landed:
            length = surveyed.read(_LENGTH)
            same = landed.read(_LENGTH) == length
            left = int.from_bytes(length, "little")
            while same and left > 0 and (expected := surveyed.read(min(left, 1 << 20))):
                same = landed.read(len(expected)) == expected
                left -= len(expected)
        if not same:
            raise CheckFailed(f"{name} has not the header that the hub sent before; survey the release again")

    def _why(self) -> str:
        try:
            return _beside(self.folder, "failed").read_text()
        except OSError:
            return f"no download to {self.folder} is running"


class Following:
    """One who reads along. Also a context manager."""

    def __init__(self, folder: Path) -> None:
        path = _beside(folder, "follower")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Read along no longer: the download hashes what is left."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()


def partial(folder: Path) -> Path:
    """Where a release lies until it is whole and checked."""
    return folder.with_name(f"{folder.name}.partial")


def begun_folder(folder: Path) -> Path:
    """Where unfinished files of a release lie that are written from front to back."""
    return folder.with_name(f"{folder.name}.begun")


def followed(folder: Path) -> bool:
    """Whether somebody reads along."""
    return _held(_beside(folder, "follower"))


@contextmanager
def arriving(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Be the one who fetches `folder`; waits for any other. Those who wait for its files learn why the body fails."""
    failed = _beside(folder, "failed")
    with deadline.file_lock(_beside(folder, "lock"), waiting):
        failed.unlink(missing_ok=True)
        try:
            yield
        except Day0Error as error:
            note_failure(folder, str(error))
            raise
        except BaseException as error:
            note_failure(folder, f"the download broke off ({type(error).__name__})")
            raise


def note_failure(folder: Path, why: str) -> None:
    """Tell those who wait for files of `folder` why they wait in vain."""
    try:
        with atomic_write(_beside(folder, "failed")) as file:
            file.write(why.encode())
    except OSError:  # a full disk may be the very reason; they are told that no download is running
        return


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f"{folder.name}.{suffix}")


def _held(path: Path) -> bool:
    """Whether somebody holds a lock on the file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
