"""When each activation is alive, and what memory that takes: without reuse, at least, and as one static pool.

A buffer lives from the operator that writes it to the last one that reads it. Without reuse the buffers add up; no
allocator needs less than what is alive at once; a pool laid out before the pass, where buffers share addresses that are
never alive together, comes close to that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

#: torch's caching allocator rounds every block up to so many bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
ALIGNMENT = 512


@dataclass(frozen=True)
class Op:
    """One operator: reads the outputs `inputs` of earlier ones, and writes `output` of `elements` · `width` bytes."""

    name: str
    inputs: tuple[str, ...]
    output: str
    elements: int
    width: int

    @property
    def bytes(self) -> int:
        return self.elements * self.width


@dataclass(frozen=True)
class Buffer:
    """`bytes` bytes that are alive from operator `first` to operator `last`, both included."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Whether there is an operator during which both are alive."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Pools:
    """Bytes that a sequence of operators takes for its outputs."""

    without_reuse: int
    """Every output has memory of its own."""
    peak_live: int
    """The most that is alive at once: no less will do."""
    static_pool: int
    """One pool that is laid out beforehand."""
    largest: tuple[tuple[str, int], ...]
    """What is alive at the peak, with its bytes, the largest first."""


def pools(ops: Sequence[Op], keep: Collection[str] = (), alignment: int = ALIGNMENT) -> Pools:
    """What a sequence of operators takes. Outputs in `keep` are alive to the end.

    Raises:
        ValueError: an operator reads what none before it wrote, or two write one output.
    """
    held = lifetimes(ops, keep, alignment)
    at_peak = max(
        ([buffer for buffer in held if buffer.first <= at <= buffer.last] for at in range(len(ops))),
        key=lambda alive: sum(buffer.bytes for buffer in alive),
        default=[],
    )
    return Pools(
        without_reuse=sum(buffer.bytes for buffer in held),
        peak_live=sum(buffer.bytes for buffer in at_peak),
        static_pool=pool_size(held, place(held)),
        largest=tuple(sorted(((b.name, b.bytes) for b in at_peak if b.bytes), key=lambda named: (-named[1], named[0]))),
    )


def lifetimes(ops: Sequence[Op], keep: Collection[str] = (), alignment: int = ALIGNMENT) -> tuple[Buffer, ...]:
    """The buffers in the order in which they are written; bytes are rounded up to `alignment`.

    Raises:
        ValueError: as of `pools`.
    """
    last: dict[str, int] = {}
    for at, op in enumerate(ops):
        for name in op.inputs:
            if name not in last:
                raise ValueError(f"{op.name} reads {name!r}, which no operator before it writes")
            last[name] = at
        if op.output in last:
            raise ValueError(f"{op.name} writes {op.output!r}, which is written already")
        last[op.output] = at
    end = len(ops) - 1
    return tuple(
        Buffer(op.output, -(-op.bytes // alignment) * alignment, at, end if op.output in keep else last[op.output])
        for at, op in enumerate(ops)
    )


def place(buffers: Iterable[Buffer]) -> dict[str, int]:
    """An offset in one pool for each buffer, so that none overlaps another that is alive with it.

    Greedy by size: the largest first, each into the smallest gap that takes it between those placed already that it
    meets, else behind them (Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference",
    arXiv:2001.03288, section 5). The same in the order of time, as an allocator would meet them; the smaller pool is
    taken.
    """
    held = tuple(buffers)
    by_size = _placed(sorted(held, key=lambda b: (-b.bytes, b.first, b.name)))
    in_time = _placed(held)
    return min(by_size, in_time, key=lambda offsets: pool_size(held, offsets))


def _placed(order: Iterable[Buffer]) -> dict[str, int]:
    placed: list[tuple[int, Buffer]] = []
    for buffer in order:
        placed.append((_best_gap(buffer, placed), buffer))
    return {buffer.name: offset for offset, buffer in placed}


def _best_gap(buffer: Buffer, placed: Sequence[tuple[int, Buffer]]) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for offset, other in sorted(((offset, other) for offset, other in placed if other.meets(buffer)), key=_by_offset):
        gap = offset - end
        if gap >= buffer.bytes and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, offset + other.bytes)
    return end if best is None else best[1]


def _by_offset(held: tuple[int, Buffer]) -> int:
    return held[0]


def pool_size(buffers: Iterable[Buffer], offsets: dict[str, int]) -> int:
    """Bytes of the pool that a placement needs."""
    return max((offsets[buffer.name] + buffer.bytes for buffer in buffers), default=0)
