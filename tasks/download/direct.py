"""Files and parts of files by plain HTTP: one connection a file, written from front to back and hashed on the way.

What breaks off is continued by a range, in the same run or a later one. It is also the other way to a file that a
hub's client damaged.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import httpx

from day0 import deadline
from day0.errors import CheckFailed, InputError, Unavailable
from day0.hash_cache import HashCache
from day0.http import http_client
from tasks.download.manifest import Expected
from tasks.download.source import Address
from tasks.download.space import not_written

logger = logging.getLogger("day0.download")

ATTEMPTS = 5
"""Requests that bring nothing, one after another, until a file is given up."""
DAMAGED_ATTEMPTS = 2
"""Whole bodies with a wrong digest until a file that was damaged already is given up."""
FIRST_PAUSE = 0.4
"""Seconds before the first repetition of a request; each further pause is twice as long."""
PATIENCE = 60.0
"""Seconds without a byte after which a connection is given up; also the longest pause that a server may ask for."""

_PIECE = 1 << 20
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # statuses after which a request is worth repeating
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class _Retry(Exception):
    """An answer that may be better next time; `pause` is what the server asks to wait, in seconds."""

    def __init__(self, why: str, pause: float | None = None) -> None:
        super().__init__(why)
        self.pause = pause


class _Damaged(_Retry):
    """A body that is not what it should be: nothing of it is kept."""


@contextmanager
def connection() -> Iterator[httpx.Client]:
    """A client for `read_range`, for use by several threads; it ends with the stage."""
    with http_client(follow_redirects=True, timeout=PATIENCE) as client:
        yield client


def read_range(client: httpx.Client, address: Address, begin: int, end: int, size: int) -> bytes:
    """The bytes [begin, end) of a file of `size` bytes. A server that sends whole files is cut off at `end`.

    Raises:
        InputError: this account may not read it.
        Unavailable: the server does not send it, or sends something else.
    """
    failures = 0
    while True:
        try:
            return _range(client, address, begin, end, size)
        except (_Retry, httpx.TransportError) as error:
            failures += 1
            _pause(failures, error, address)


def _range(client: httpx.Client, address: Address, begin: int, end: int, size: int) -> bytes:
    if begin == end:
        return b""
    with _answer(client, address, {"Range": f"bytes={begin}-{end - 1}"}) as response:
        position = _position(response, size)
        if position > begin:
            raise _Damaged(f"it sends the bytes from {position:,} on where those from {begin:,} were asked for")
        body = bytearray()
        for piece in response.iter_raw():
            deadline.current().check()
            skipped = min(len(piece), begin - position)
            position += skipped
            body += piece[skipped:]
            if len(body) >= end - begin:
                return bytes(body[: end - begin])
    raise _Retry(f"it broke off after {len(body):,} of {end - begin:,} bytes")


def fetch_whole(
    address: Address,
    expected: Expected,
    target: Path,
    begun: Path,
    progress: Callable[[int], None],
    *,
    again: bool = False,
) -> str:
    """Fetch one file to `target`, hashing what is written; returns its SHA-256, which is known from then on.

    Until it is whole and right it lies at `begun`, where a later call continues it. `progress` is told how many bytes
    of it there are, now and then. With `again` it is a file that came damaged before: proxies are asked for no copy
    of theirs, and it is tried more than once.

    Raises:
        CheckFailed: what the server sends has another digest than it should.
        InputError: this account may not read it, or the disk is full.
        Unavailable: the server does not send it.
    """
    try:
        begun.parent.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        # The lock keeps those who would read the file waiting until its digest is known.
        with open(os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0) as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            digest = _Body(address, expected, file, progress, again).fetch()
            os.fsync(file.fileno())
            os.replace(begun, target)
            HashCache().put(target, os.fstat(file.fileno()), digest)
    except CheckFailed:
        begun.unlink()
        raise
    except OSError as error:
        raise not_written(error, target) from error
    return digest


class _Body:
    """One file on its way: what is written of it, and the digest of that."""

    def __init__(
        self, address: Address, expected: Expected, file: BinaryIO, progress: Callable[[int], None], again: bool
    ) -> None:
        self.address, self.expected, self.file, self.progress = address, expected, file, progress
        self.bodies = DAMAGED_ATTEMPTS if again else 1
        self.headers = {"Cache-Control": "no-cache"} if again else {}
        self._restart()
        while piece := file.read(_PIECE):
            self._count(piece)

    def fetch(self) -> str:
        """SHA-256 of the file, once it is whole and right."""
        failures = damaged = 0
        with connection() as client:
            while True:
                before = self.done
                try:
                    self._continue(client)
                    return self._finish()
                except _Damaged as error:
                    damaged += 1
                    self._truncate()
                    if damaged == self.bodies:
                        raise CheckFailed(str(error)) from error
                    logger.warning("%s: %s; it is fetched from the start", self.address.url, error)
                except (_Retry, httpx.TransportError) as error:
                    failures = 1 if self.done > before else failures + 1
                    _pause(failures, error, self.address)

    def _continue(self, client: httpx.Client) -> None:
        size = self.expected.size
        if size is not None and self.done > size:
            self._truncate()
        if self.done == size:
            return
        headers = self.headers | ({"Range": f"bytes={self.done}-"} if self.done else {})
        with _answer(client, self.address, headers) as response:
            if _position(response, size) != self.done:
                self._truncate()  # it sends the whole file
                if _position(response, size):
                    raise _Damaged("it does not continue where it was asked to")
            self.progress(self.done)
            for piece in response.iter_raw():
                deadline.current().check()
                if size is not None and self.done + len(piece) > size:
                    raise _Damaged(f"it sends more than the {size:,} bytes that the hub lists")
                self._write(piece)
                self.progress(self.done)
        if size is not None and self.done < size:
            raise _Retry(f"it broke off after {self.done:,} of {size:,} bytes")

    def _finish(self) -> str:
        sha256 = self.sha256.hexdigest()
        if self.expected.sha256 and sha256 != self.expected.sha256:
            raise _Damaged(f"its sha256 is {sha256}, the hub says {self.expected.sha256}")
        if self.git_sha1 and (actual := self.git_sha1.hexdigest()) != self.expected.git_sha1:
            raise _Damaged(f"its git sha1 is {actual}, the hub says {self.expected.git_sha1}")
        return sha256

    def _write(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            view = view[self.file.write(view) :]
        self._count(piece)

    def _count(self, piece: bytes) -> None:
        self.sha256.update(piece)
        if self.git_sha1:
            self.git_sha1.update(piece)
        self.done += len(piece)

    def _truncate(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        self._restart()

    def _restart(self) -> None:
        self.done = 0
        self.sha256 = hashlib.sha256()
        self.git_sha1 = None
        if self.expected.git_sha1 and self.expected.size is not None:
            self.git_sha1 = hashlib.sha1(b"blob %d\0" % self.expected.size, usedforsecurity=False)


@contextmanager
def _answer(client: httpx.Client, address: Address, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
    """A good answer to a GET, its body not yet read."""
    asked = {**address.headers, "Accept-Encoding": "identity", **headers}
    with client.stream("GET", address.url, headers=asked) as response:
        if response.status_code in (401, 403):
            raise InputError(
                f"{address.url} is refused to this account ({response.status_code}): accept the release's terms "
                "there and set its hub's token"
            )
        if response.status_code == 416:
            raise _Damaged("it has fewer bytes than were fetched already")
        if response.status_code in _PASSING:
            raise _Retry(f"it answers {response.status_code}", _asked_pause(response))
        if response.status_code not in (200, 206):
            raise Unavailable(f"{address.url} cannot be fetched: it answers {response.status_code}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise _Retry("it sends a compressed file, which was not asked for")
        yield response


def _position(response: httpx.Response, size: int | None) -> int:
    """Where in the file the body starts. What it says of the file's size must be what the hub lists."""
    if response.status_code == 206:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if not match:
            raise _Retry("it sends a part of the file and does not say which")
        begin, total = int(match[1]), match[3]
    else:
        begin, total = 0, response.headers.get("Content-Length", "*")
    if size is not None and total.isdecimal() and int(total) != size:
        raise _Retry(f"it sends a file of {int(total):,} bytes, the hub lists {size:,}")
    return begin


def _pause(failures: int, error: Exception, address: Address) -> None:
    """Wait before the next try, longer each time."""
    limit = deadline.current()
    limit.check()
    if failures >= ATTEMPTS:
        raise Unavailable(f"{address.url} cannot be fetched: {error or type(error).__name__}") from error
    logger.warning("%s: %s; it is tried again", address.url, error or type(error).__name__)
    asked = error.pause if isinstance(error, _Retry) else None
    time.sleep(limit.remaining(at_most=FIRST_PAUSE * 2 ** (failures - 1) if asked is None else asked) or 0)
    limit.check()


def _asked_pause(response: httpx.Response) -> float | None:
    """`Retry-After` in seconds; the other form, a date, is not waited for by more than the usual pause."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), PATIENCE) if text.isdecimal() else None
