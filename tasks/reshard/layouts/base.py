"""What a layout is: it takes units, and says which files there are with what in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from day0.architecture.bound import BoundFamily, BoundRule
from day0.architecture.cuts import Cut, Cutter, nbytes
from day0.architecture.slicing import World, expert_range, stage_layers
from day0.artifacts.shards import Dropped
from tasks.reshard.units import Unit, stage_of
from tasks.reshard.writes import Origin


@dataclass(frozen=True, slots=True)
class Place:
    """A file to write, and whose it is."""

    name: str
    rank: int


@dataclass(slots=True, eq=False)
class Placed:
    """A tensor of a file, or of the files of ranks that hold the same: parts of units that follow each other, or a
    constant (its bytes, repeated)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[Unit, Cut], ...] = ()
    constant: bytes | None = None
    note: str = ""
    origins: tuple[Origin, ...] | None = None
    """Once they are known."""

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, self.shape)


class Layout(ABC):
    """Takes units and says which files there are, with what in them."""

    def __init__(
        self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, cut_to_share: bool = False
    ) -> None:
        self.bound, self.world, self.cutter = bound, world, cutter
        self.part_bytes, self.cut_to_share = part_bytes, cut_to_share
        self.dropped: list[Dropped] = []
        self.everyone = range(world.stage_ranks)
        self._owners: dict[BoundRule, list[range]] = {}
        """Of a rule for experts that are stored one by one: the owners of each."""
        spans = stage_layers(bound.layers, world.pp)
        self.stage_by_layer = {layer: s for s, (first, last) in enumerate(spans) for layer in range(first, last)}

    @staticmethod
    def expert_parallel(tp: int, pp: int, ep: int) -> int:
        """The expert parallel size that is meant; refuses what the layout has no names for."""
        return ep

    @abstractmethod
    def place(self, units: Iterable[Unit]) -> None:
        """Take all units."""

    @abstractmethod
    def files(self) -> Iterator[tuple[Place, list[Placed]]]:
        """The files, in the order in which they are numbered, with their tensors."""

    def data_at(self, laid: Sequence[tuple[Placed, int]]) -> int | None:
        """How far into a page the data of a file should begin, whose tensors lie in this order with so many bytes;
        None: anywhere."""
        return None

    def owners(self, unit: Unit) -> range:
        """The ranks of a stage that hold a part of the unit: all, or those that an expert belongs to."""
        rule = unit.match.rule
        expert = unit.match.number("expert") if rule.rule.kind == "routed_expert" else None
        if expert is None:
            return self.everyone
        if rule not in self._owners:
            each, count = self.world.expert_tp, len(rule.numbers["expert"] or ())
            spans = [expert_range(count, self.world.ep, group) for group in range(self.world.ep)]
            self._owners[rule] = [
                range(group * each, (group + 1) * each) for group, span in enumerate(spans) for _ in range(*span)
            ]
        return self._owners[rule][expert]

    def stages(self, unit: Unit) -> tuple[int, ...]:
        """The pipeline stages that hold the unit: one, or for a shared embedding the first and the last."""
        stage = stage_of(unit.match, self.stage_by_layer, self.world.pp)
        last = self.world.pp - 1
        if unit.match.rule.rule.kind == "embedding" and self.shared_embedding and stage != last:
            return stage, last
        return (stage,)

    shared_embedding: bool = False
    """Embeddings are tied and the checkpoint has no head: the last stage needs the embedding too."""

    def note_head(self, units: list[Unit]) -> None:
        head_stored = any(unit.match.rule.rule.kind == "head" for unit in units)
        self.shared_embedding = self.bound.tied and not head_stored
