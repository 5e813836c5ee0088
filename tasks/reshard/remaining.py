"""What of a plan is left to do, given what an earlier run recorded and what lies in the folder."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from day0.architecture.slicing import Range
from day0.checkpoint import Checkpoint
from day0.errors import CheckFailed
from tasks.reshard.jobs import State, state_of
from tasks.reshard.journal import Journal
from tasks.reshard.targets import Target
from tasks.reshard.writes import Piece, TargetFile, WritePlan


class Remaining:
    """`shards` to take, in order, and `targets` that are not whole, by their numbers in the plan.

    `reached` has the numbers of the targets that each of the plan's shards brings something to, and `sources` the
    files that are read for it.
    """

    def __init__(
        self,
        plan: WritePlan,
        checkpoint: Checkpoint,
        root: Path,
        expected: Mapping[str, str],
        hashes: bool,
        journal: Journal,
    ) -> None:
        self._plan, self._checkpoint, self._root = plan, checkpoint, root
        self._expected, self._hashes, self._journal = expected, hashes, journal
        self.reached = _targets_reached(plan, [name for name in checkpoint.files if hashes or name in plan.streams])
        self.sources = {name: _inputs(plan, name) for name in self.reached}
        done = self._recorded_shards()
        self.shards = [name for name in self.reached if name not in done]
        self.targets = self._targets(done, self._whole_targets(done))

    def without_shard(self) -> list[int]:
        """Targets to which no shard that is left brings anything: they are there, and want hashing and a record."""
        brought = {number for name in self.shards for number in self.reached[name]}
        return [number for number in self.targets if number not in brought]

    def _recorded_shards(self) -> set[str]:
        """Shards that need not be taken again: verified, unchanged since, and all their targets are still there."""
        broken = {number for number, file in enumerate(self._plan.files) if not self._undamaged(file)}
        done = set()
        for name, record in self._journal.shards.items():
            if name not in self.reached or not broken.isdisjoint(self.reached[name]):
                continue
            hashed = record.sha256 is not None and record.sha256 == self._expected.get(name, record.sha256)
            states = {source: self._state(source) for source in self.sources[name]}
            if record.states == states and (hashed or not self._hashes):
                done.add(name)
        return done

    def _undamaged(self, file: TargetFile) -> bool:
        """Whether a target file lies there as an earlier run left it."""
        try:
            status = (self._root / file.name).lstat()
        except FileNotFoundError:
            return False
        record = self._journal.targets.get(file.name)
        recorded = record is None or (record.size, record.mtime_ns) == (status.st_size, status.st_mtime_ns)
        return status.st_size == file.nbytes and recorded

    def _whole_targets(self, done: set[str]) -> set[int]:
        """Targets that are finished: recorded as such, and every shard that they are from is still the same."""
        touched = {number for name in self.reached if name not in done for number in self.reached[name]}
        return {
            number
            for number, file in enumerate(self._plan.files)
            if number not in touched
            and (record := self._journal.targets.get(file.name))
            and (record.sha256 or not self._hashes)
            and self._undamaged(file)
        }

    def _targets(self, done: set[str], whole: set[int]) -> dict[int, Target]:
        """The targets that are not whole, by number, each with what it has already."""
        present: dict[int, list[Range]] = defaultdict(list)
        for fill in self._plan.fills:
            end = fill.target_offset + len(fill.pattern) * fill.count
            present[fill.target].append((fill.target_offset, end))
        for name in done:
            for piece in _pieces(self._plan, name):
                present[piece.target].append((piece.target_offset, piece.target_offset + piece.nbytes))
        shards = Counter(number for name in self.shards for number in self.reached[name])
        targets = {}
        for number, file in enumerate(self._plan.files):
            if number not in whole:
                ranges = ((0, len(file.header)), *present[number])
                targets[number] = Target(file.name, file.nbytes, ranges, shards[number] or 1, self._hashes)
        return targets

    def _state(self, name: str) -> State:
        return state_of(os.stat(self._checkpoint.path(name)))


def _pieces(plan: WritePlan, name: str) -> Iterator[Piece]:
    for stream in plan.streams.get(name, ()):
        yield from stream.pieces


def _inputs(plan: WritePlan, name: str) -> set[str]:
    """The files that a shard's job reads: itself, and where its conversions' scales lie."""
    return {name, *(tensor.file for stream in plan.streams.get(name, ()) for tensor in stream.inputs)}


def _targets_reached(plan: WritePlan, names: list[str]) -> dict[str, set[int]]:
    """Shard → numbers of the targets that it brings something to.

    Raises:
        CheckFailed: headers, pieces and fills together are not as many bytes as a target has.
    """
    reached: dict[str, set[int]] = {}
    nbytes = [len(file.header) for file in plan.files]
    for fill in plan.fills:
        nbytes[fill.target] += len(fill.pattern) * fill.count
    for name in names:
        numbers = reached[name] = set()
        for piece in _pieces(plan, name):
            numbers.add(piece.target)
            nbytes[piece.target] += piece.nbytes
    for file, planned in zip(plan.files, nbytes, strict=True):
        if file.nbytes != planned:
            raise CheckFailed(f"{file.name}: {file.nbytes:,} bytes, but the plan brings {planned:,}: it is not whole")
    return reached
