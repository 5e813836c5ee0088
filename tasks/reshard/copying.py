"""One source shard with hashes off: the kernel copies what it can, and only what is gathered or converted is read.

Idle threads take part. What is done for each of thousands of small runs costs all of them time, since while one holds
the interpreter the others wait for it: so calls and offsets are prepared beforehand, and taken many at once.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tasks.reshard.hashing import BufferPool, Control, Helpers, Stopped
from tasks.reshard.moves import Columns, Cover, Move, Run, Strided, columns_of, copy_rows, covers, long_runs, rows_views
from tasks.reshard.source import Source
from tasks.reshard.targets import Targets, write_at
from tasks.reshard.writes import Stream

BATCH = 8 << 20  # bytes that a thread takes at once, so that a deadline is noticed and others find something to do
LONG_ROW = 128 << 10  # from here on the kernel copies a row by itself: no slower than gathering it, and no buffer
_CANNOT_COPY = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF, errno.EIO)


class Call(NamedTuple):
    """Arguments of copy_file_range for at most `BATCH` bytes, and the target's number."""

    descriptor: int
    nbytes: int
    begin: int
    offset: int
    target: int


@dataclass(slots=True)
class Batch:
    """Calls by where they begin in the source, about `BATCH` bytes together."""

    begin: int
    calls: list[Call]
    nbytes: int = 0


class Copying:
    """All that a shard brings to targets, copied by the thread that calls `run` and by idle ones.

    `blocks` and `convert` are what is done without the kernel's copy: the moves within [begin, end), and a stream.
    """

    def __init__(
        self,
        source: Source,
        targets: Targets,
        buffers: BufferPool,
        helpers: Helpers,
        control: Control,
        blocks: Callable[[int, int, Sequence[Move]], None],
        convert: Callable[[Stream], None],
    ) -> None:
        self.source, self.targets, self.buffers = source, targets, buffers
        self.helpers, self.control = helpers, control
        self.blocks, self.convert = blocks, convert
        self.todo: deque[Batch | Stream | Cover] = deque()
        self.threads, self.failed = 0, False
        self.changed = threading.Condition()

    def run(self, moves: Sequence[Move], converted: Sequence[Stream]) -> None:
        """Copy moves and streams, both by where they begin.

        Raises:
            Stopped: another thread failed; it says why.
        """
        moves = [m for move in moves for m in (long_runs(move, LONG_ROW) if isinstance(move, Strided) else (move,))]
        single: list[tuple[int, Call | Stream | Cover]] = [(call.begin, call) for call in self._calls(moves)]
        single += [(stream.inputs[0].begin, stream) for stream in converted]
        single += [(cover.begin, cover) for cover in covers([move for move in moves if isinstance(move, Strided)])]
        self.todo.extend(_batches(what for _, what in sorted(single, key=lambda entry: entry[0])))
        try:
            self.drain()
        finally:  # the source is closed next: nobody may be reading it any more
            self.todo.clear()
            with self.changed:
                self.changed.wait_for(lambda: not self.threads)
        if self.failed:
            raise Stopped

    def _calls(self, moves: Sequence[Move]) -> Iterator[Call]:
        for move in moves:
            if not (isinstance(move, Run) and move.write):
                continue
            descriptor, shift = self.targets.descriptor(move.target), move.target_offset - move.begin
            for begin in range(move.begin, move.end, BATCH):
                yield Call(descriptor, min(BATCH, move.end - begin), begin, begin + shift, move.target)

    def drain(self) -> None:
        """Copy what of this shard nobody has begun, while idle threads do the same."""
        with self.changed:
            self.threads += 1
        try:
            while True:
                try:
                    what = self.todo.popleft()
                except IndexError:
                    return
                if self.todo:  # else two idle threads would offer each other nothing, again and again
                    self.helpers.offer(self)
                self._copy(what)
        except BaseException:
            self.failed = True
            raise
        finally:
            with self.changed:
                self.threads -= 1
                self.changed.notify_all()

    def _copy(self, what: Batch | Stream | Cover) -> None:
        if isinstance(what, Batch):
            self._copy_batch(what)
        elif isinstance(what, Stream):
            self.convert(what)
        elif (table := columns_of(what)) and table.stride <= self.buffers.size:
            self._copy_columns(what, table)
        else:
            self.blocks(what.begin, what.end, what.moves)

    def _copy_batch(self, batch: Batch) -> None:
        self.control.check()
        self.source.ahead(batch.begin + batch.nbytes)
        source, copy = self.source.descriptor, os.copy_file_range
        for call in batch.calls:
            descriptor, nbytes, begin, offset, _ = call
            try:
                done = copy(source, descriptor, nbytes, begin, offset)
            except OSError as error:
                if error.errno not in _CANNOT_COPY:
                    raise
                done = 0
            if done != nbytes:
                self._copy_rest(call, done)
            else:
                self.control.add(nbytes)
        self.source.drop(batch.begin)

    def _copy_rest(self, call: Call, done: int) -> None:
        """What of a call's bytes the kernel did not copy at once; by reading and writing where it cannot."""
        _, nbytes, begin, offset, target = call
        self.control.add(done)
        while done < nbytes:
            self.control.check()
            try:
                copied = os.copy_file_range(
                    self.source.descriptor, call.descriptor, nbytes - done, begin + done, offset + done
                )
            except OSError as error:
                if error.errno not in _CANNOT_COPY:
                    raise
                copied = 0
            if not copied:  # some file systems cannot, and some say so by doing nothing
                run = Run(target, offset + done, begin + done, begin + nbytes)
                self.blocks(run.begin, run.end, [run])
                return
            self.control.add(copied)
            done += copied

    def _copy_columns(self, cover: Cover, table: Columns) -> None:
        """Read whole rows, as many at once as fit, and write each target's columns of them."""
        rows, stride, run, columns = table
        at_once = -(-rows // -(-rows // (self.buffers.size // stride)))
        targets = [(self.targets.descriptor(move.target), move.target_offset) for move in columns]
        block, staging = self.buffers.take(), self.buffers.take()
        try:
            whole = rows_views(block.array, 0, staging.array, 0, at_once, run, stride, len(columns))
            for first in range(0, rows, at_once):
                self.control.check()
                count, begin = min(at_once, rows - first), cover.begin + first * stride
                end = min(begin + count * stride, cover.end)
                self.source.ahead(end)
                self.source.read(block.view[: end - begin], begin)
                if count == at_once:
                    whole.out[...] = whole.rows
                else:
                    copy_rows(block.array, 0, staging.array, 0, count, run, stride, len(columns))
                size, done = count * run, first * run
                for number, (descriptor, offset) in enumerate(targets):
                    write_at(descriptor, staging.view[number * size : (number + 1) * size], offset + done)
                self.control.add(end - begin)
                self.source.drop(end)
        finally:
            staging.release()
            block.release()


def _batches(single: Iterator[Call | Stream | Cover]) -> Iterator[Batch | Stream | Cover]:
    """Calls that follow each other put together; the rest as it is."""
    batch: Batch | None = None
    for what in single:
        if not isinstance(what, Call):
            if batch:
                yield batch
            batch = None
            yield what
            continue
        if batch and batch.nbytes + what.nbytes > BATCH:
            yield batch
            batch = None
        if not batch:
            batch = Batch(what.begin, [])
        batch.calls.append(what)
        batch.nbytes += what.nbytes
    if batch:
        yield batch
