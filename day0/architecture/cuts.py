"""What a rank holds of a stored tensor, as ranges of its dimensions and as runs of its bytes.

Computed once for all tensors of one rule, shape and dtype: the half million tensors of a large model are some hundred
such kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from day0.architecture.bound import BoundRule
from day0.architecture.grains import Grain
from day0.architecture.rules import TOWERS
from day0.architecture.slicing import Range, World, expert_range, rank_range
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS


@dataclass(frozen=True, slots=True)
class Run:
    """Boxes of a tensor, joined along a dimension: `rows` runs of `run` bytes, `stride` apart, hold them all.

    A box is a range of each dimension. There are several where they alternate: gate and up of each expert.
    """

    boxes: tuple[tuple[Range, ...], ...]
    offset: int
    rows: int
    run: int
    stride: int
    axis: int | None = None
    """The dimension along which several boxes are joined."""
    note: str = ""
    """How the rows are ordered, where not as they are stored."""

    @property
    def nbytes(self) -> int:
        return self.rows * self.run


@dataclass(frozen=True, slots=True)
class Cut:
    """What one rank holds: boxes that follow each other along the divided dimension, then `padding` rows of zeros."""

    shape: tuple[int, ...]
    runs: tuple[Run, ...]
    padding: int = 0
    row_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs) + self.padding * self.row_bytes

    @property
    def whole(self) -> bool:
        """All bytes as they are stored, nothing else."""
        return len(self.runs) == 1 and self.runs[0].rows == 1 and self.runs[0].offset == 0 and not self.padding


@dataclass(frozen=True, eq=False)
class Kind:
    """All that a cut depends on: the weight's rule, and how a tensor of it is stored. Compared by identity."""

    rule: BoundRule
    shape: tuple[int, ...]
    dtype: str
    grains: tuple[Grain, ...]


class Cutter:
    """Cuts for the ranks of a world."""

    def __init__(self, world: World, vocab_multiple: int, whole_towers: bool) -> None:
        self.world = world
        self.vocab_multiple = vocab_multiple
        self.whole_towers = whole_towers
        self._kinds: dict[tuple[BoundRule, tuple[int, ...], str, tuple[Grain, ...]], Kind] = {}
        self._cuts: dict[Kind, tuple[Cut, ...]] = {}

    def kind(self, rule: BoundRule, shape: tuple[int, ...], dtype: str, grains: tuple[Grain, ...]) -> Kind:
        """The one `Kind` with these properties."""
        key = (rule, shape, dtype, grains)
        found = self._kinds.get(key)
        if found is None:
            found = self._kinds[key] = Kind(rule, shape, dtype, grains)
        return found

    def cuts(self, kind: Kind) -> tuple[Cut, ...]:
        """What each rank of a pipeline stage holds of such a tensor (of an expert's own tensor: its owners).

        Raises:
            InputError: a size does not divide, or a block of a quantised weight would be cut; names them.
        """
        found = self._cuts.get(kind)
        if found is None:
            each = self.world.expert_tp
            made = (self._cut(kind, r % self.world.tp, r // each, r % each) for r in range(self.world.stage_ranks))
            one: dict[Cut, Cut] = {}  # ranks that hold the same share it, and all that is made of it
            found = self._cuts[kind] = tuple(one.setdefault(cut, cut) for cut in made)
        return found

    def forget(self, kinds: Iterable[Kind]) -> None:
        """Cut these anew when they are next asked for."""
        for kind in kinds:
            self._cuts.pop(kind, None)

    def _cut(self, kind: Kind, tp: int, group: int, expert_tp: int) -> Cut:
        rule = kind.rule
        ranges = [(0, length) for length in kind.shape]
        if rule.rule.experts is not None:
            for i, grain in enumerate(kind.grains):
                if grain.dim == rule.rule.experts:
                    ranges[i] = expert_range(kind.shape[i], self.world.ep, group)
        routed = rule.rule.kind == "routed_expert"
        ranks, rank = (self.world.expert_tp, expert_tp) if routed else (self.world.tp, tp)
        place = self._divided(kind, ranks)
        if place is None:
            return _joined(kind, [ranges], None)
        boxes, padding = [], 0
        start = 0
        for segment in rule.segments:
            if rule.rule.split.how == "vocab":
                padded = -(-segment.size // self.vocab_multiple) * self.vocab_multiple
                first, last = rank_range(padded, padded, ranks, rank, False, False, f"{rule.name}: padded vocabulary")
                held = (min(first, segment.size), min(last, segment.size))
                padding = (last - first) - (held[1] - held[0])
            else:
                what = f"{rule.name}: {segment.counted}"
                uneven = rule.rule.split.uneven
                held = rank_range(segment.size, segment.units, ranks, rank, segment.replicate, uneven, what)
            stored = self._stored(kind, place, (start + held[0], start + held[1]), ranks, (start, start + segment.size))
            boxes.append([stored if i == place else r for i, r in enumerate(ranges)])
            start += segment.size
        return _joined(kind, boxes, place, padding)

    def _divided(self, kind: Kind, ranks: int) -> int | None:
        """The stored dimension that is divided, or None."""
        rule = kind.rule
        if rule.dim is None or (ranks == 1 and rule.rule.split.how != "vocab"):
            return None
        if self.whole_towers and rule.rule.kind in TOWERS:
            return None
        return next((i for i, grain in enumerate(kind.grains) if grain.dim == rule.dim), None)

    def _stored(self, kind: Kind, place: int, held: Range, ranks: int, segment: Range) -> Range:
        """A range of the weight's dimension, as one of the stored dimension `place`."""
        grain = kind.grains[place].size
        first, last = held
        end = segment[1]
        if grain == 1:
            return held
        if first % grain or (last % grain and last != kind.rule.shape[kind.rule.dim or 0]):
            raise InputError(_cuts_block(kind, grain, held, ranks, end - segment[0]))
        return first // grain, -(-last // grain)


def _cuts_block(kind: Kind, grain: int, held: Range, ranks: int, size: int) -> str:
    rule = kind.rule
    legal = [t for t in range(1, ranks) if t == 1 or (size % t == 0 and (size // t) % grain == 0)]
    legal_text = f"{'legal are' if len(legal) > 1 else 'legal is'} tp {', '.join(map(str, legal))}"
    return (
        f"{rule.name}: {size:,} divided by tp {ranks} is {held[1] - held[0]:,}, which is no multiple of its "
        f"quantisation block of {grain}; {legal_text}, or convert it (--weight-dtype bfloat16)"
    )


def _joined(kind: Kind, boxes: Sequence[Sequence[Range]], place: int | None, padding: int = 0) -> Cut:
    runs: tuple[Run, ...] = tuple(_run(kind, tuple(box)) for box in boxes)
    if place is not None and len(boxes) > 1 and math.prod(last - first for first, last in boxes[0][:place]) > 1:
        runs = (_alternating(kind, runs, place),)
    shape = tuple(last - first for first, last in boxes[0])
    if place is not None:
        length = sum(box[place][1] - box[place][0] for box in boxes) + padding
        shape = tuple(length if i == place else n for i, n in enumerate(shape))
    row = nbytes(kind.dtype, kind.shape[1:])
    return Cut(shape, tuple(run for run in runs if run.nbytes), padding, row)


def _alternating(kind: Kind, runs: Sequence[Run], place: int) -> Run:
    """Boxes that a dimension before the divided one repeats: one of each in turn, not one after the other.

    They are of one size and equally far apart, and as far from the last to the first of the next turn.
    """
    first, count = runs[0], len(runs)
    step = kind.shape[place] * nbytes(kind.dtype, kind.shape[place + 1 :]) // count
    regular = [run.offset == first.offset + i * step and run.run == first.run for i, run in enumerate(runs)]
    if not all(regular) or kind.shape[place] % count:
        raise InputError(f"{kind.rule.name}: unequal parts of dimension {place} cannot be divided")
    boxes = tuple(box for run in runs for box in run.boxes)
    return Run(boxes, first.offset, first.rows * count, first.run, step, place)


def _run(kind: Kind, box: tuple[Range, ...]) -> Run:
    """The bytes of a box. It may be partial in one dimension besides the first."""
    shape = kind.shape
    partial = [i for i, (first, last) in enumerate(box) if (first, last) != (0, shape[i])]
    if not partial:
        size = nbytes(kind.dtype, shape)
        return Run((box,), 0, 1, size, size)
    inner = partial[-1]
    unit = nbytes(kind.dtype, shape[inner + 1 :])
    rows = math.prod(last - first for first, last in box[:inner])
    run, stride = (box[inner][1] - box[inner][0]) * unit, shape[inner] * unit
    offset = sum(first * nbytes(kind.dtype, shape[i + 1 :]) for i, (first, _) in enumerate(box))
    if any(i != 0 for i in partial[:-1]):
        raise InputError(f"{kind.rule.name}: a split in dimensions {partial} at once is not supported")
    return Run((box,), offset, rows, run, stride) if rows > 1 else Run((box,), offset, 1, run, run)


def in_halves(cut: Cut, kind: Kind, each: int) -> Cut:
    """The same with the rows of each head (`each` rows) in another order: those of even number, then the others."""
    grain = kind.grains[0] if kind.grains else None
    if grain is None or grain.dim != 0:
        return cut  # one value for the whole tensor
    if grain.size != 1 or any(run.rows != 1 for run in cut.runs):
        raise InputError(f"{kind.rule.name}: its rows are reordered, which cuts a quantisation block; convert it first")
    row = nbytes(kind.dtype, kind.shape[1:])
    runs = []
    for (first, last), *rest in (box for run in cut.runs for box in run.boxes):
        for head in range(first, last, each):
            box = ((head, head + each), *rest)
            runs.append(Run((box,), head * row, each // 2, row, 2 * row, note="rows of even number first"))
            runs.append(Run((), (head + 1) * row, each // 2, row, 2 * row))
    return Cut(cut.shape, tuple(runs), cut.padding, cut.row_bytes)


def of_first_rows(kind: Kind, count: int, ranks: int, rank: int) -> Cut:
    """A rank's part of the first `count` rows alone.

    Raises:
        InputError: there are fewer, or they do not divide.
    """
    if kind.shape[0] < count:
        raise InputError(f"{kind.rule.name}: it has {kind.shape[0]} rows; the engine takes {count}")
    first, last = rank_range(count, count, ranks, rank, False, False, f"{kind.rule.name}: the rows that are taken")
    run = _run(kind, ((first, last), *((0, size) for size in kind.shape[1:])))
    left = kind.shape[0] - count
    return Cut((last - first, *kind.shape[1:]), (replace(run, note=f"not the last {left} rows" if left else ""),))


def filled_up(cut: Cut, rows: int, kind: Kind) -> Cut:
    """A cut with at least so many rows: zeros after its own."""
    more = max(0, rows - cut.shape[0])
    shape = (cut.shape[0] + more, *cut.shape[1:])
    return Cut(shape, cut.runs, cut.padding + more, nbytes(kind.dtype, shape[1:]))


def zeros(cut: Cut, dtype: str) -> Cut:
    """A cut of the same shape without any values."""
    return Cut(cut.shape, (), cut.shape[0], nbytes(dtype, cut.shape[1:]))


@lru_cache(1 << 14)
def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor, or of a part of it; values of less than a byte fill whole bytes together."""
    return math.prod(shape) * DTYPE_BITS[dtype] // 8
