"""Carries a plan out in one streaming pass: every source byte read once, every target byte written once, both hashed.

One thread reads large blocks into reused buffers and writes from them; others hash. Memory is bounded by the pool of
buffers, whatever the size of the model. No tensor library is involved: a split is a copy of byte ranges.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from day0 import deadline, progress
from day0.checkpoint import Checkpoint
from day0.errors import CheckFailed, InputError
from tasks.reshard.hashing import Buffer, BufferPool, FileHash, HashPool
from tasks.reshard.writes import Copy, Fill, Piece, WritePlan

BLOCK = 4 << 20
BUFFERS = 12
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Hashes:
    """SHA-256 of the shards that were read and of the files that were written, by name."""

    sources: Mapping[str, str]
    targets: Mapping[str, str]


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A temporary folder beside `destination` that takes its name when the body returns, and else is removed.

    Raises:
        InputError: the destination is there and not empty.
    """
    refuse_occupied(destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=destination.parent, prefix=f".{destination.name}.", suffix=".tmp"))
    except OSError as error:
        raise InputError(f"{destination} cannot be written: {error.strerror}") from error
    try:
        yield temporary
        temporary.chmod(0o755)
        refuse_occupied(destination)
        os.replace(temporary, destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_occupied(destination: Path) -> None:
    """Raise InputError unless `destination` is absent or an empty folder."""
    if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
        raise InputError(f"{destination} is not a folder; give a new folder to write to")
    if destination.is_dir() and any(destination.iterdir()):
        raise InputError(f"{destination} is not empty; give a new folder, or remove what is in it")


def write_files(
    plan: WritePlan, checkpoint: Checkpoint, root: Path, expected: Mapping[str, str] | None = None
) -> Hashes:
    """Write every file of the plan below `root`, which exists and is the caller's to remove if this raises.

    Args:
        expected: SHA-256 that source shards must have, by name.

    Raises:
        CheckFailed: a source shard's bytes are not those that are expected.
        InputError: no space, or a source that cannot be read or changed meanwhile.
    """
    free = shutil.disk_usage(root).free
    if plan.bytes_written > free:
        raise InputError(
            f"not enough space for {root.parent}: {plan.bytes_written:,} bytes are to be written, {free:,} are free"
        )
    try:
        hashes = _Pass(plan, checkpoint, root).run()
    except OSError as error:
        if error.errno in _FULL:
            raise InputError(
                f"{root.parent}: {error.strerror} while {plan.bytes_written:,} bytes were being written; "
                "nothing was kept, make space and try again"
            ) from error
        raise InputError(f"{error.filename or root}: {error.strerror}") from error
    except EOFError as error:
        raise InputError(f"{checkpoint.root}: {error}; nothing was kept, try again") from error
    for name, digest in hashes.sources.items():
        if expected and name in expected and digest != expected[name]:
            raise CheckFailed(
                f"{name}: SHA-256 is {digest}, but {expected[name]} was recorded; the file changed or is damaged, "
                "fetch it again (`day0 verify --rehash` tells which files are)"
            )
    return hashes


class _Pass:
    """One run over the plan."""

    def __init__(self, plan: WritePlan, checkpoint: Checkpoint, root: Path) -> None:
        self.plan, self.checkpoint, self.root = plan, checkpoint, root
        # A block holds whole rows of whatever is split by rows; the strided runs of one source row lie in one block.
        longest = max((p.stride for s in plan.steps if isinstance(s, Copy) for p in s.pieces if p.rows > 1), default=0)
        self.buffers = BufferPool(max(BLOCK, longest), BUFFERS)
        self.done = 0

    def run(self) -> Hashes:
        with ExitStack() as stack:
            _allow_open_files(len(self.checkpoint.files) + len(self.plan.files))
            self.sources = {name: _open_source(stack, self.checkpoint, name) for name in self.checkpoint.files}
            self.targets = [_create(stack, self.root / file.name) for file in self.plan.files]
            before = {name: _state(descriptor) for name, descriptor in self.sources.items()}
            pool = stack.enter_context(HashPool(max(2, os.cpu_count() or 1)))
            self.source_hash = {name: FileHash(pool, descriptor) for name, descriptor in self.sources.items()}
            self.target_hash = [FileHash(pool, descriptor) for descriptor in self.targets]
            for number, file in enumerate(self.plan.files):
                _write(self.targets[number], memoryview(file.header), 0)
                self.target_hash[number].feed_bytes(file.header)
            for name, header in self.checkpoint.files.items():
                self.source_hash[name].catch_up(header.data_start)
            for dropped in self.plan.dropped:
                tensor = self.checkpoint.tensors[dropped.tensor]
                self.source_hash[tensor.file].pass_over(tensor.begin, tensor.end)
            for step in self.plan.steps:
                if isinstance(step, Copy):
                    self._copy(step)
                else:
                    self._fill(step)
            for name, header in self.checkpoint.files.items():
                self.source_hash[name].catch_up(header.file_bytes)
            pool.finish()
            for descriptor in self.targets:
                deadline.current().check()
                os.fsync(descriptor)
            for name, descriptor in self.sources.items():
                if _state(descriptor) != before[name]:
                    raise EOFError(f"{name} was changed while it was read")
        names = [file.name for file in self.plan.files]
        return Hashes(
            {name: sha.hexdigest() for name, sha in self.source_hash.items()},
            {name: sha.hexdigest() for name, sha in zip(names, self.target_hash, strict=True)},
        )

    def _copy(self, step: Copy) -> None:
        source = step.source
        stride = max((p.stride for p in step.pieces if p.rows > 1), default=1)
        block = self.buffers.size // stride * stride
        for begin in range(source.begin, source.end, block):
            deadline.current().check()
            end = min(begin + block, source.end)
            buffer = self.buffers.take()
            try:
                view = buffer.view[: end - begin]
                _read(self.sources[source.file], view, begin)
                self.source_hash[source.file].feed(begin, view, buffer)
                for piece in step.pieces:
                    self._write_piece(piece, source.begin, begin, view, buffer)
            finally:
                buffer.release()
            self.done += end - begin
            progress.report(f"resharding {source.file}", self.done, self.plan.bytes_read, "B")

    def _write_piece(self, piece: Piece, base: int, begin: int, view: memoryview, buffer: Buffer) -> None:
        """Write what of the piece lies in the block `view`.

        The block starts at `begin` in the source file, and the tensor at `base`.
        """
        if piece.rows == 1:
            first = max(piece.source_offset, begin)
            last = min(piece.source_offset + piece.run, begin + len(view))
            if first < last:
                offset = piece.target_offset + first - piece.source_offset
                self._write_target(piece.target, view[first - begin : last - begin], offset, buffer)
            return
        # Blocks start where a row starts, so the run lies at the same place in each row.
        column = (piece.source_offset - base) % piece.stride
        rows = len(view) // piece.stride
        staging = self.buffers.take()
        try:
            gathered = staging.view[: rows * piece.run]
            for row in range(rows):
                start = row * piece.stride + column
                gathered[row * piece.run : (row + 1) * piece.run] = view[start : start + piece.run]
            offset = piece.target_offset + (begin - base) // piece.stride * piece.run
            self._write_target(piece.target, gathered, offset, staging)
        finally:
            staging.release()

    def _fill(self, step: Fill) -> None:
        offset, left = step.target_offset, step.count
        at_once = max(1, self.buffers.size // len(step.pattern))
        while left:
            count = min(left, at_once)
            data = step.pattern * count
            _write(self.targets[step.target], memoryview(data), offset)
            self.target_hash[step.target].feed_bytes(data)
            offset, left = offset + len(data), left - count

    def _write_target(self, target: int, view: memoryview, offset: int, buffer: Buffer) -> None:
        _write(self.targets[target], view, offset)
        self.target_hash[target].feed(offset, view, buffer)


def _allow_open_files(count: int) -> None:
    """Raise the process's own limit where so many files at once need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def _open_source(stack: ExitStack, checkpoint: Checkpoint, name: str) -> int:
    descriptor = os.open(checkpoint.path(name), os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return descriptor


def _create(stack: ExitStack, path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    stack.callback(os.close, descriptor)
    return descriptor


def _read(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.preadv(descriptor, [view], offset)
        if not count:
            raise EOFError("a shard became shorter while it was read")
        view, offset = view[count:], offset + count


def _write(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
