"""The units of work, and what comes of them: plain values that can be sent to another process or machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.reshard.targets import Finished, Target
from tasks.reshard.writes import Stream

State = tuple[int, int, int]
"""Size, modification time in nanoseconds, and inode: what tells that a file is still the one that was read."""


@dataclass(frozen=True)
class ShardJob:
    """All that is needed to take one shard: nothing here refers to another process's memory."""

    name: str
    sources: Mapping[str, str]
    """Paths of this shard and of those in which a conversion's other inputs lie."""
    file_bytes: int
    root: str
    streams: tuple[Stream, ...]
    targets: Mapping[int, Target]
    """The target files that this shard brings something to."""
    hashes: bool
    expected: str | None
    drop_behind: bool
    """Whether to tell the kernel that what was read is not needed again: for what does not fit into memory."""
    shared: bool = False
    """Whether others hash the shard too, a download for one: whoever reads it first does, and tells the rest."""


@dataclass(frozen=True)
class ShardResult:
    """`states` are those of every file that was read; `errors` are the quantisation errors by tensor."""

    name: str
    states: Mapping[str, State]
    sha256: str | None
    errors: Mapping[str, Mapping[str, float]]
    finished: tuple[Finished, ...] = field(default=())


@dataclass(frozen=True)
class FinishJob:
    """A target file to which nothing more comes: to be hashed and put on the disk."""

    root: str
    target: Target


def state_of(status: os.stat_result) -> State:
    return status.st_size, status.st_mtime_ns, status.st_ino
