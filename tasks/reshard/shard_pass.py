"""One source shard, read from front to back, and everything that it brings to target files.

This is the unit of work: `run_shard` takes a job that can be pickled and needs nothing else, so it runs in a thread
of this process or on another machine that sees the same file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from day0 import deadline
from day0.errors import CheckFailed
from day0.hash_cache import claim
from tasks.reshard.copying import Copying
from tasks.reshard.hashing import Buffer, BufferPool, Control, FileHash, Helpers
from tasks.reshard.jobs import FinishJob, ShardJob, ShardResult, State, state_of
from tasks.reshard.moves import Move, Run, Sweep, copied, gather, moves_of, shared_span
from tasks.reshard.reflink import NoReflinks, clone_range
from tasks.reshard.source import Source, read_at
from tasks.reshard.targets import Finished, Targets
from tasks.reshard.writes import Stream


def buffers_for(threads: int) -> tuple[int, int]:
    """Size and number of buffers: a block to read and one to gather into for each thread, and some to be hashed.

    Blocks that the processor's second cache holds are copied, gathered and hashed without going to memory again.
    """
    count = 3 * threads + 2
    return max(256 << 10, min(1 << 20, (96 << 20) // count)), count


def run_shard(job: ShardJob) -> ShardResult:
    """Take one shard by itself. Targets that no other shard brings anything to are finished and hashed too."""
    control, helpers = Control(deadline.current()), Helpers()
    targets = Targets(Path(job.root), job.targets, helpers, control)
    try:
        result = ShardPass(job, targets, BufferPool(*buffers_for(1), control), helpers, control).run()
        return replace(result, finished=tuple(targets.shard_done(job.targets)))
    finally:
        targets.close()


def run_finish(job: FinishJob) -> Finished:
    """Finish one target file by itself."""
    targets = Targets(Path(job.root), {0: job.target}, Helpers(), Control(deadline.current()))
    try:
        return targets.shard_done([0])[0]
    finally:
        targets.close()


@dataclass(frozen=True)
class Growth:
    """A shard that is still arriving, from front to back.

    `pause` is called as long as more of it is waited for, and raises where that is in vain; `landed` waits for the
    whole file, and raises where its header is not the one that the plan was made from.
    """

    pause: Callable[[], object]
    landed: Callable[[], object]


class ShardPass:
    """One pass over one shard; with `growth` over one that is still arriving."""

    def __init__(
        self,
        job: ShardJob,
        targets: Targets,
        buffers: BufferPool,
        helpers: Helpers,
        control: Control,
        growth: Growth | None = None,
    ) -> None:
        self.job, self.targets, self.buffers, self.growth = job, targets, buffers, growth
        self.helpers, self.control = helpers, control
        self.sources: dict[str, int] = {}
        self.shares = True
        """Whether blocks may be shared, until the kernel has said that these file systems never do."""
        self.sha: FileHash | None = None
        self.errors: dict[str, dict[str, float]] = {}

    def run(self) -> ShardResult:
        """Read, write, hash; what was written is not on the disk yet, that is for `Targets.shard_done`.

        Raises:
            CheckFailed: the shard's SHA-256 is not the expected one, or what arrived of it was thrown away.
            EOFError: the shard was changed or is shorter than its header says.
        """
        job = self.job
        with ExitStack() as stack:
            for name, path in job.sources.items():
                self.sources[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, self.sources[name])
            self.source = Source(self.sources[job.name], job.name, job.file_bytes, job.drop_behind)
            source = self.source.descriptor
            before = self._states()
            if self.growth is None and before[job.name][0] != job.file_bytes:
                raise EOFError(f"{job.name} has {before[job.name][0]:,} bytes, its header says {job.file_bytes:,}")
            os.posix_fadvise(source, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            held = None
            if job.hashes and job.shared and self.growth is None:
                held = stack.enter_context(claim(Path(job.sources[job.name]), waiting=self.control.check))
            if job.hashes and not (held and held.known):
                self.sha = FileHash(source, self.helpers, self.control)
            moves = [part for move in copied(job.streams) for part in self._share(move)]
            converted = sorted((s for s in job.streams if s.conversion), key=lambda s: s.inputs[0].begin)
            if job.hashes:
                self._read_all(moves, converted)
            else:
                self._copy_all(moves, converted)
            digest = self.sha.finish(job.file_bytes) if self.sha else held.known if held else None
            if held and digest and not held.known:
                held.record(digest)
            after = self._states()
            if self.growth:
                before = after  # what was read is right whatever it was before: its digest is compared
            for name, state in before.items():
                if after[name] != state:
                    raise EOFError(f"{name} was changed while it was read")
        if job.expected and digest and digest != job.expected:
            raise CheckFailed(
                f"{job.name}: SHA-256 is {digest}, but {job.expected} was recorded; the file changed or is damaged, "
                "fetch it again (`day0 verify --rehash` tells which files are)"
            )
        if self.growth:
            self.growth.landed()
        return ShardResult(job.name, before, digest, self.errors)

    def _states(self) -> dict[str, State]:
        return {name: state_of(os.fstat(descriptor)) for name, descriptor in self.sources.items()}

    def _share(self, move: Move) -> list[Move]:
        """The move, or what is left of it to copy where the middle of a run can be shared."""
        begin, end = shared_span(move) if self.shares else (0, 0)
        if begin == end or not isinstance(move, Run):
            return [move]
        offset = move.target_offset - move.begin
        target = self.targets.descriptor(move.target)
        try:
            if not clone_range(self.source.descriptor, begin, end, target, begin + offset):
                return [move]
        except NoReflinks:
            self.shares = False
            return [move]
        spans = ((move.begin, begin, True), (begin, end, False), (end, move.end, True))
        return [Run(move.target, a + offset, a, b, write) for a, b, write in spans if a < b]

    def _read_all(self, moves: Sequence[Move], converted: Sequence[Stream]) -> None:
        """Every byte once, since all of them are hashed."""
        sweep, position = Sweep(moves), 0
        for stream in converted:
            self._blocks(position, stream.inputs[0].begin, sweep)
            self._convert(stream)
            position = stream.inputs[0].end
        self._blocks(position, self.job.file_bytes, sweep)

    def _copy_all(self, moves: Sequence[Move], converted: Sequence[Stream]) -> None:
        """Only what the kernel cannot copy by itself is read; in any order, by any thread."""

        def blocks(begin: int, end: int, moves: Sequence[Move]) -> None:
            self._blocks(begin, end, Sweep(moves))

        copying = Copying(self.source, self.targets, self.buffers, self.helpers, self.control, blocks, self._convert)
        copying.run(moves, converted)

    def _blocks(self, begin: int, end: int, sweep: Sweep) -> None:
        """Read [begin, end) block by block and move what is in each."""
        size = self.buffers.size
        while begin < end:
            self.control.check()
            until = min(end, begin + size)
            self.source.ahead(until)
            self._arrived(until)
            buffer = self.buffers.take()
            try:
                view = buffer.view[: until - begin]
                self._read(view, begin)
                if self.sha:
                    self.sha.feed(begin, view, buffer)
                for move in sweep.over(begin, until):
                    self._deliver(move, view, buffer.array[: until - begin], begin, buffer)
            finally:
                buffer.release()
            self.control.add(until - begin)
            self.source.drop(until)
            begin = until

    def _deliver(
        self, move: Move, view: memoryview, array: np.ndarray[tuple[int], np.dtype[np.uint8]], begin: int,
        buffer: Buffer | None,
    ) -> None:  # fmt: skip
        """Write what of the move lies in a block, which starts at `begin`."""
        if isinstance(move, Run):
            low, high = max(move.begin, begin), min(move.end, begin + len(view))
            if low < high:
                part = view[low - begin : high - begin]
                self.targets.put(move.target, move.target_offset + low - move.begin, part, buffer, move.write)
            return
        staging = self.buffers.take() if len(view) <= self.buffers.size else Buffer(len(view), None)
        try:
            offset, count = gather(array, begin, move, staging.array)
            if count:
                self.targets.put(move.target, offset, staging.view[:count], staging)
        finally:
            staging.release()

    def _convert(self, stream: Stream) -> None:
        """Blocks of the first input, in whole units of the conversion, and all pieces of what comes out."""
        from tasks.reshard.convert.registry import make_converter  # compiles kernels: not for those who only copy

        assert stream.conversion
        first = stream.inputs[0]
        converter = make_converter(stream.conversion, stream.inputs, lambda i, a, b: self._read_input(stream, i, a, b))
        moves: dict[int, list[Move]] = {}
        for number in {piece.output for piece in stream.pieces}:
            moves[number] = moves_of((0, piece) for piece in stream.pieces if piece.output == number)
        size = max(converter.unit, self.buffers.size // converter.unit * converter.unit)
        for begin in range(first.begin, first.end, size):
            self.control.check()
            end = min(begin + size, first.end)
            self.source.ahead(end)
            self._arrived(end)
            buffer = self.buffers.take() if size <= self.buffers.size else Buffer(size, None)
            try:
                view = buffer.view[: end - begin]
                self._read(view, begin)
                if self.sha:
                    self.sha.feed(begin, view, buffer)
                for number, offset, data in converter.convert(begin - first.begin, view):
                    flat = data.cast("B") if data.format != "B" or data.ndim != 1 else data
                    for move in moves.get(number, ()):
                        if move.begin < offset + len(flat) and offset < move.end:
                            self._deliver(move, flat, np.frombuffer(flat, np.uint8), offset, None)
            finally:
                buffer.release()
            self.control.add(end - begin)
        if (errors := converter.errors()) is not None:
            self.errors[first.name] = dict(errors)

    def _read_input(self, stream: Stream, number: int, begin: int, end: int) -> memoryview:
        tensor = stream.inputs[number]
        if tensor.file == self.job.name:
            self._arrived(tensor.begin + end)
        view = memoryview(bytearray(end - begin))
        read_at(self.sources[tensor.file], view, tensor.begin + begin, tensor.file)
        return view

    def _read(self, view: memoryview, begin: int) -> None:
        while True:
            try:
                return self.source.read(view, begin)
            except EOFError:
                if self.growth is None:
                    raise
            self._arrived(begin + len(view))  # it was cut off meanwhile, and arrives once more

    def _arrived(self, position: int) -> None:
        """Wait until the shard is there up to `position`, if it is still arriving."""
        while self.growth:
            status = os.fstat(self.source.descriptor)
            if not status.st_nlink:
                raise CheckFailed(f"{self.job.name}: it arrived damaged, and what there was of it was thrown away")
            if status.st_size >= position:
                return
            self.growth.pause()
