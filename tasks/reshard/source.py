"""A source shard that is being read: what the kernel should read ahead of it, and what it may forget."""

from __future__ import annotations

import os

_AHEAD = 16 << 20  # a disk reads on while a block is hashed and written
_STEP = 4 << 20
_DROP = 32 << 20


class Source:
    """An open shard. `drop_behind`: what was read leaves the kernel's cache, where it is larger than the memory."""

    def __init__(self, descriptor: int, name: str, file_bytes: int, drop_behind: bool) -> None:
        self.descriptor, self.name = descriptor, name
        self._file_bytes, self._drop_behind = file_bytes, drop_behind
        self._advised = self._dropped = 0

    def read(self, view: memoryview, offset: int) -> None:
        """Fill `view`; raises as `read_at`."""
        read_at(self.descriptor, view, offset, self.name)

    def ahead(self, position: int) -> None:
        """Have the kernel read what comes after `position`, where it is not in memory."""
        self._advised = max(self._advised, position)
        while self._advised < min(position + _AHEAD, self._file_bytes):
            os.posix_fadvise(self.descriptor, self._advised, _STEP, os.POSIX_FADV_WILLNEED)
            self._advised += _STEP

    def drop(self, position: int) -> None:
        """What lies before `position` has been read."""
        if self._drop_behind and position - self._dropped >= _DROP:
            os.posix_fadvise(self.descriptor, self._dropped, position - self._dropped, os.POSIX_FADV_DONTNEED)
            self._dropped = position


def read_at(descriptor: int, view: memoryview, offset: int, name: str) -> None:
    """Fill `view`.

    Raises:
        EOFError: the file ends before.
    """
    while view:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise EOFError(f"{name} became shorter while it was read")
        view, offset = view[count:], offset + count
