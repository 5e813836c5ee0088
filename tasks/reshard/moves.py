"""What a shard's streams come to: byte runs that stay together, and strided ones that are gathered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from day0.architecture.slicing import Range
from tasks.reshard.reflink import BLOCK
from tasks.reshard.writes import Piece, Stream

_SHARE = 64 << 10  # runs shorter than this are copied: sharing them would only fragment the file
Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class Run:
    """Bytes [begin, end) of a shard (or of a conversion's output) that go to `target_offset` of a target."""

    target: int
    target_offset: int
    begin: int
    end: int
    write: bool = True
    """False where the target shares the blocks already, so that the bytes are only hashed."""


@dataclass(slots=True)
class Strided:
    """`rows` runs of `run` bytes, `stride` apart from `begin` on, that follow each other in a target."""

    target: int
    target_offset: int
    begin: int
    rows: int
    run: int
    stride: int

    @property
    def end(self) -> int:
        return self.begin + (self.rows - 1) * self.stride + self.run


Move = Run | Strided


@dataclass(slots=True)
class Cover:
    """A range of a shard, and the strided moves that lie in it."""

    begin: int
    end: int
    moves: list[Move]


def moves_of(pieces: Iterable[tuple[int, Piece]]) -> list[Move]:
    """The moves of pieces, by where they begin. Each piece comes with the offset that its own one counts from.

    Runs that are neighbours in the source and in the target are joined, across tensors: what a pipeline or expert
    split takes from a shard is often one run of gigabytes.
    """
    moves: list[Move] = []
    for base, piece in pieces:
        begin = base + piece.offset
        if not piece.nbytes:
            continue
        if piece.rows > 1 and piece.run != piece.stride:
            moves.append(Strided(piece.target, piece.target_offset, begin, piece.rows, piece.run, piece.stride))
        else:
            moves.append(Run(piece.target, piece.target_offset, begin, begin + piece.nbytes))
    moves.sort(key=lambda move: move.begin)
    joined: list[Move] = []
    last: dict[int, Run] = {}
    for move in moves:
        if isinstance(move, Run):
            before = last.get(move.target)
            if before and before.end == move.begin and _target_end(before) == move.target_offset:
                before.end = move.end
                continue
            last[move.target] = move
        joined.append(move)
    return joined


def _target_end(run: Run) -> int:
    return run.target_offset + run.end - run.begin


def shareable(streams: Iterable[Stream]) -> int:
    """How many bytes of what streams bring to targets can be shared with the source."""
    spans = (shared_span(move) for move in copied(streams))
    return sum(end - begin for begin, end in spans)


def copied(streams: Iterable[Stream]) -> list[Move]:
    """The moves of all that is not converted."""
    return moves_of((s.inputs[0].begin, p) for s in streams if not s.conversion for p in s.pieces)


def shared_span(move: Move) -> Range:
    """What of a move consists of whole blocks of both files; empty where that is not worth sharing."""
    if not isinstance(move, Run) or (move.begin - move.target_offset) % BLOCK:
        return 0, 0
    begin, end = -(-move.begin // BLOCK) * BLOCK, move.end // BLOCK * BLOCK
    return (begin, end) if end - begin >= _SHARE else (0, 0)


class Sweep:
    """Which moves have something in a block; blocks come in ascending order."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves, self._next = moves, 0
        self._active: list[Move] = []

    def over(self, begin: int, end: int) -> list[Move]:
        while self._next < len(self._moves) and self._moves[self._next].begin < end:
            self._active.append(self._moves[self._next])
            self._next += 1
        self._active = [move for move in self._active if move.end > begin]
        return self._active


def covers(moves: Sequence[Strided]) -> list[Cover]:
    """The ranges that moves, sorted by where they begin, cover together; none of them overlaps another."""
    found: list[Cover] = []
    for move in moves:
        if found and move.begin < found[-1].end:
            found[-1].end = max(found[-1].end, move.end)
            found[-1].moves.append(move)
        else:
            found.append(Cover(move.begin, move.end, [move]))
    return found


class Columns(NamedTuple):
    """A cover whose moves are the columns of one table, side by side and as wide as each other."""

    rows: int
    stride: int
    run: int
    columns: list[Strided]


def columns_of(cover: Cover) -> Columns | None:
    """As a table, whole rows of which can be read and divided in one call; None: it is not one."""
    columns = [move for move in cover.moves if isinstance(move, Strided)]
    rows, run, stride = columns[0].rows, columns[0].run, columns[0].stride
    alike = all(
        (move.begin, move.rows, move.run, move.stride) == (cover.begin + number * run, rows, run, stride)
        for number, move in enumerate(columns)
    )
    return Columns(rows, stride, run, columns) if alike and len(columns) == len(cover.moves) else None


def long_runs(move: Strided, at_least: int) -> Iterator[Move]:
    """The rows of a move one by one where they are as long as that, and otherwise the move as it is."""
    if move.run < at_least:
        yield move
        return
    for row in range(move.rows):
        begin = move.begin + row * move.stride
        yield Run(move.target, move.target_offset + row * move.run, begin, begin + move.run)


def gather(block: Bytes, begin: int, move: Strided, out: Bytes) -> tuple[int, int]:
    """Put what of the move lies in the block, which starts at `begin`, into `out`.

    Blocks may start and end anywhere, also within a row.

    Returns:
        Offset in the target, and the number of bytes.
    """
    run, stride, end = move.run, move.stride, begin + len(block)
    first = max(0, (begin - move.begin - run) // stride + 1)  # the first row that ends after the block's begin
    last = min(move.rows, -((move.begin - end) // stride))  # after the last row that starts before its end
    if first >= last:
        return 0, 0
    start = move.begin + first * stride - begin
    offset = move.target_offset + first * run
    filled = 0
    if start < 0:  # this row began in the block before
        offset -= start
        filled = min(run + start, len(block))
        out[:filled] = block[:filled]
        first, start = first + 1, start + stride
    whole = min(last, (end - move.begin - run) // stride + 1) - first
    if whole > 0:
        copy_rows(block, start, out, filled, whole, run, stride)
        filled += whole * run
        first, start = first + whole, start + whole * stride
    if first < last:  # this row goes on in the next block
        rest = len(block) - start
        out[filled : filled + rest] = block[start:]
        filled += rest
    return offset, filled


class RowsViews(NamedTuple):
    """Rows of a block, and where they go, as arrays of one shape: `out[...] = rows` copies them."""

    out: NDArray[Any]
    rows: NDArray[Any]


def copy_rows(
    block: Bytes, start: int, out: Bytes, filled: int, rows: int, run: int, stride: int, columns: int = 1
) -> None:
    """Put rows of the block one after another into `out`; of neighbouring columns, all rows of each after the other."""
    views = rows_views(block, start, out, filled, rows, run, stride, columns)
    views.out[...] = views.rows


def rows_views(
    block: Bytes, start: int, out: Bytes, filled: int, rows: int, run: int, stride: int, columns: int = 1
) -> RowsViews:
    """What `copy_rows` copies, in one call whatever the number of rows, in elements as large as a row.

    Short rows are copied as words, where they lie on word boundaries.
    """
    width = gcd(run, stride, block.ctypes.data + start, out.ctypes.data + filled, 8) if run <= 64 else run
    kind = np.dtype(f"u{width}") if run <= 64 else np.dtype((np.void, run))
    shape = (columns, rows, run // width)
    source = np.ndarray(shape, kind, block.data, start, (run, stride, width))
    return RowsViews(np.ndarray(shape, kind, out.data, filled), source)
