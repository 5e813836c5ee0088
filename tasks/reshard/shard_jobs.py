"""The jobs of a run's shards: where each lies, and which can be taken while it is still arriving."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from day0.checkpoint import Checkpoint
from day0.landing import Landing
from tasks.reshard.jobs import ShardJob
from tasks.reshard.moves import shareable
from tasks.reshard.reflink import supports_reflink
from tasks.reshard.remaining import Remaining
from tasks.reshard.shard_pass import Growth
from tasks.reshard.targets import Target
from tasks.reshard.writes import WritePlan

Sleep = Callable[[float], object]


class ShardJobs:
    """Makes the job of any shard that is left to do; see `write_files` for what it is made from."""

    def __init__(
        self,
        plan: WritePlan,
        checkpoint: Checkpoint,
        root: Path,
        expected: Mapping[str, str],
        hashes: bool,
        left: Remaining,
        landing: Landing | None,
    ) -> None:
        self.plan, self.checkpoint, self.root, self.expected = plan, checkpoint, root, expected
        self.hashes, self.left, self.landing = hashes, left, landing
        self.reflinks = landing is not None and supports_reflink(root)
        self.drop_behind = checkpoint.bytes + plan.bytes_written > _memory() // 2

    def make(
        self, name: str, targets: Mapping[int, Target], sleep: Sleep = time.sleep, *, follow: bool = False
    ) -> ShardJob:
        """The job of a shard; waits, by `sleep`, until the files that it needs are there.

        With `follow` a shard that can be taken while it arrives need only be begun; see `growth`.
        """
        begun = follow and self._can_follow(name)
        return ShardJob(
            name=name,
            sources={source: str(self._path(source, sleep, begun)) for source in self.left.sources[name]},
            file_bytes=self.checkpoint.files[name].file_bytes,
            root=str(self.root),
            streams=tuple(self.plan.streams.get(name, ())),
            targets={number: targets[number] for number in sorted(self.left.reached[name])},
            hashes=self.hashes,
            expected=self.expected.get(name),
            drop_behind=self.drop_behind,
            shared=self.landing is not None,
        )

    def growth(self, job: ShardJob, sleep: Sleep) -> Growth | None:
        """How to wait for more of the job's shard, where not all of it is there."""
        landing = self.landing
        if landing is None or not landing.unfinished(Path(job.sources[job.name])):
            return None
        return Growth(landing.pauses(job.name, sleep), lambda: landing.wait_for(job.name, sleep))

    def _path(self, name: str, sleep: Sleep, begun: bool) -> Path:
        if self.landing is None:
            return self.checkpoint.path(name)
        return self.landing.wait_for(name, sleep, begun=begun)

    def _can_follow(self, name: str) -> bool:
        """Whether a shard can be taken while it arrives: by itself, from front to back, into bytes of its own.

        Whether what arrived is right is only known at the end, by the digest: without one it is waited for.
        """
        alone = self.left.sources[name] == {name}
        shared = self.reflinks and shareable(self.plan.streams.get(name, ()))
        return bool(self.landing and self.hashes and self.expected.get(name) and alone and not shared)


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
