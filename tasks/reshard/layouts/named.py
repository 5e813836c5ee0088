"""Layouts with names of their own, after an engine's: units of one name become one tensor."""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from day0.architecture.bound import BoundFamily, normalised
from day0.architecture.cuts import Cut, Cutter, filled_up, in_halves, of_first_rows, zeros
from day0.architecture.rules import Target
from day0.architecture.slicing import World
from day0.artifacts.shards import Dropped
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS
from tasks.reshard.layouts.base import Layout, Place, Placed
from tasks.reshard.units import Unit, for_engine, is_mtp, is_transposed

#: A unit's place among those that are joined, the unit, and what a rank has of it.
_Part = tuple[tuple[int, int], Unit, Cut]


@dataclass(slots=True, eq=False)
class _Join:
    """Units that become one tensor of an engine, in the order of `order`."""

    units: list[tuple[tuple[int, int], Unit]] = field(default_factory=list)
    stacked: bool = False
    target: Target | None = None
    constant: Placed | None = None


class NamedLayout(Layout):
    """A layout with names of its own: units of one target name are joined."""

    name: ClassVar[str]

    def __init__(
        self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, cut_to_share: bool = False
    ) -> None:
        super().__init__(bound, world, cutter, part_bytes, cut_to_share)
        self.held: dict[tuple[int, int, str, int], list[Placed]] = {}
        """By pipeline stage, rank in it, prefix of the file's name, and part."""
        self.filled: dict[tuple[int, int, str], tuple[int, int]] = {}
        """By stage, rank and prefix: the part that is being filled, and its bytes."""
        self.rule = bound.layouts[self.name]

    def place(self, units: Iterable[Unit]) -> None:
        listed = list(units)
        self.note_head(listed)
        joins: dict[tuple[int, str], _Join] = {}
        for unit in listed:
            self._join(unit, joins)
        for join in joins.values():
            self._keep_single(join)
        for stage, constant in self._constants():
            joins.setdefault((stage, constant.name), _Join(constant=constant))  # unless the checkpoint brings it
        for (stage, name), join in sorted(joins.items(), key=lambda item: (self._order(item[1]), item[0])):
            for rank in range(self.world.stage_ranks):
                if placed := join.constant or self._joined(name, join, rank):
                    self._put(stage, rank, self._prefix(join), placed)

    def _join(self, unit: Unit, joins: dict[tuple[int, str], _Join]) -> None:
        rule = unit.match.rule
        if is_mtp(unit.match, self.bound):
            self._apart(unit, joins)
            return
        target = rule.targets.get(self.name)
        if unit.companion and unit.companion.transposed and is_transposed(unit.kind.grains):
            raise InputError(
                f"tensor {unit.name!r} (GPTQ or AWQ) has input features first, and layout {self.name!r} does not join "
                "such tensors; write layout hf, or convert the weights (--weight-dtype bfloat16)"
            )
        if target is None:
            raise InputError(
                f"tensor {unit.name!r} has no name in layout {self.name!r} (configs/families/{rule.family}.yaml)"
            )
        named = {slot: n for slot, n in zip(rule.slots, unit.match.numbers, strict=True) if isinstance(slot, str)}
        name = target.name
        stacked = "expert" in named and "{expert}" not in name
        for slot, number in named.items():
            name = name.replace(f"{{{slot}}}", str(number))
        name = self._companion_name(name, unit, target)
        ending = unit.companion.ending.lstrip("._") if unit.companion else ""
        unit = for_engine(unit, target, self.cutter, self.rule.dtypes.get(ending))
        expert = named["expert"] if stacked else 0
        shares = rule.rule.kind == "embedding" and self.shared_embedding
        for stage in self._stages_of(unit, target) | (self._head_stages() if shares else set()):
            # A stage that has both the embedding and the head has one tensor, the head's.
            held = self.rule.tied_name or name if shares and stage in self._head_stages() else name
            join = joins.setdefault((stage, held), _Join(stacked=stacked, target=target))
            join.units += [((expert, part), unit) for part in (target.part, *target.also)]

    def _keep_single(self, join: _Join) -> None:
        """Of records that the joined parts share, the last part's; of every expert."""
        if join.target is None or not any(unit.companion and unit.companion.single for _, unit in join.units):
            return
        kept = {item[0][0]: item for item in sorted(join.units, key=lambda item: item[0])}
        for item in join.units:
            last = kept[item[0][0]]
            if item is not last:
                reason = f"one record is kept of the parts that are joined, that of {last[1].name}"
                self.dropped.append(Dropped(tensor=item[1].tensor.name, reason=reason))
        join.units = list(kept.values())

    def _stages_of(self, unit: Unit, target: Target) -> set[int]:
        return set(range(self.world.pp)) if target.stages == "all" else set(self.stages(unit))

    def _head_stages(self) -> set[int]:
        """The pipeline stages whose model has a head."""
        heads = [rule.targets.get(self.name) for rule in self.bound.rules if rule.rule.kind == "head"]
        everywhere = any(target is not None and target.stages == "all" for target in heads)
        return set(range(self.world.pp)) if everywhere else {self.world.pp - 1}

    def _apart(self, unit: Unit, joins: dict[tuple[int, str], _Join]) -> None:
        """Multi-token prediction: kept under its own names, in files of its own."""
        for stage in self.stages(unit):
            joins.setdefault((stage, unit.name), _Join()).units.append(((0, 0), unit))

    def _prefix(self, join: _Join) -> str:
        return "mtp-" if join.target is None and join.constant is None else ""

    def _companion_name(self, name: str, unit: Unit, target: Target) -> str:
        companion = unit.companion
        if companion is None:
            return name
        ending = companion.ending
        if unit.match.rule.name.endswith(".weight") and name.endswith("weight"):
            ending, name = ending.removeprefix("."), name.removesuffix("weight")
        plain = ending.lstrip("._")
        suffix = {**self.rule.suffixes, **target.suffixes}.get(plain, plain)
        return name + ending.removesuffix(plain) + suffix if suffix else name.removesuffix(".")

    def _order(self, join: _Join) -> tuple[str, int, str, tuple[int, ...]]:
        """The order of an engine's tensors: constants, then as the source's names go, layers and experts by number."""
        if join.constant is not None:
            return "", -1, *normalised(join.constant.name)
        _, unit = min(join.units, key=lambda item: item[0])
        layer = unit.match.number("layer")
        stage = unit.match.rule.rule.stage
        group = "1" if layer is not None else "0" if stage == "first" else "2"
        key, numbers = normalised(unit.name)
        return group, -1 if layer is None else layer, key, numbers

    def _joined(self, name: str, join: _Join, rank: int) -> Placed | None:
        parts: list[_Part] = []
        for order, unit in sorted(join.units, key=lambda item: item[0]):
            if rank in self.owners(unit):
                cut = self._cut(unit, join, rank)
                zero = join.target is not None and join.target.others == "zero" and rank % self.world.expert_tp > 0
                parts.append((order, unit, zeros(cut, unit.kind.dtype) if zero else cut))
        if not parts:
            return None
        parts[-1] = self._filled_up(parts, join)
        first = parts[0][2].shape
        dtype = parts[0][1].kind.dtype
        odd = next((unit for _, unit, _ in parts if unit.kind.dtype != dtype), None)
        if odd is not None:
            raise InputError(
                f"{name}: {parts[0][1].name!r} is {dtype}, {odd.name!r} {odd.kind.dtype}; they are one tensor"
            )
        experts = len({order[0] for order, _, _ in parts}) if join.stacked else 0
        each = len(parts) // experts if experts else len(parts)
        shape = first
        if each > 1:
            group = parts[:each]
            if first and group[0][1].match.rule.rule.experts is not None:
                raise InputError(f"{name}: stacked experts cannot be joined with others")
            shape = (sum(cut.shape[0] for _, _, cut in group), *first[1:]) if first else (each,)
        if join.target is not None and join.target.shape and _is_viewed(parts[0][1]):
            shape = _viewed(shape, parts[0][1].kind.shape, join.target.shape, name)
        if experts:
            shape = (experts, *shape)
        if join.target is not None and join.target.others == "zero" and self._replica(parts[0][1], rank):
            return Placed(name, dtype, shape, (), bytes(DTYPE_BITS[dtype] // 8), "0: the engine adds up all ranks'")
        return Placed(name, dtype, shape, tuple((unit, cut) for _, unit, cut in parts))

    def _cut(self, unit: Unit, join: _Join, rank: int) -> Cut:
        """What a rank's tensor has of the unit, in the engine's order and number of rows."""
        target = unit.match.rule.targets.get(self.name)
        if target is None or join.target is None:
            return self.cutter.cuts(unit.kind)[rank]
        if target.first:
            return of_first_rows(unit.kind, int(target.first), self.world.tp, rank % self.world.tp)
        cut = self.cutter.cuts(unit.kind)[rank]
        if target.halves:
            cut = in_halves(cut, unit.kind, int(target.halves))
        if target.least and self.world.expert_tp > 1 and unit.companion is None and cut.shape[0] < int(target.least):
            rule = unit.match.rule
            raise InputError(
                f"{rule.name}: {rule.shape[0]} rows over tp {self.world.expert_tp} are {cut.shape[0]} each; the engine "
                f"would pad them to {target.least}, with values that it does not set; keep experts whole (ep "
                f"{self.world.stage_ranks}), or choose a tp of at most {max(1, rule.shape[0] // int(target.least))}"
            )
        return cut

    def _filled_up(self, parts: list[_Part], join: _Join) -> _Part:
        """The last part, with zeros that make the rows of all a multiple of what the engine wants."""
        order, unit, cut = parts[-1]
        target = unit.match.rule.targets.get(self.name)
        if join.target is None or target is None or target.multiple == 1 or not cut.shape:
            return parts[-1]
        rows = sum(part.shape[0] for _, _, part in parts)
        return order, unit, filled_up(cut, cut.shape[0] + -rows % target.multiple, unit.kind)

    def _replica(self, unit: Unit, rank: int) -> bool:
        """Whether another rank of the stage, before this one, holds the same values."""
        shared = self.world.expert_tp if unit.match.rule.rule.kind == "routed_expert" else self.world.tp
        return rank % shared > 0

    def _constants(self) -> Iterator[tuple[int, Placed]]:
        for constant, layers, shape in self.bound.constants.get(self.name, ()):
            value = _constant_bytes(constant.dtype, constant.value)
            for layer in sorted(layers) if "{layer}" in constant.name else [None]:
                stage = self.stage_by_layer.get(layer, self.world.pp - 1) if layer is not None else self.world.pp - 1
                name = constant.name.replace("{layer}", str(layer))
                yield stage, Placed(name, constant.dtype, shape, (), value, f"{constant.value:g}")

    def _put(self, stage: int, rank: int, prefix: str, placed: Placed) -> None:
        """Give the tensor a part of its rank's files: a new one where it would grow beyond the limit."""
        part, size = self.filled.get((stage, rank, prefix), (0, 0))
        if size and size + placed.nbytes > self.part_bytes:
            part, size = part + 1, 0
        self.filled[stage, rank, prefix] = part, size + placed.nbytes
        self.held.setdefault((stage, rank, prefix, part), []).append(placed)

    def files(self) -> Iterator[tuple[Place, list[Placed]]]:
        for (stage, rank, prefix, part), tensors in sorted(self.held.items(), key=lambda item: item[0]):
            number = stage * self.world.stage_ranks + rank
            yield Place(prefix + self.file_name(stage, rank, part), number), tensors

    @abstractmethod
    def file_name(self, stage: int, rank: int, part: int) -> str:
        """What the layout's loader looks for."""


def _is_viewed(unit: Unit) -> bool:
    """Whether the target's shape is the unit's: of a weight that is stored packed it is that of the packed bytes."""
    if unit.companion is None:
        return not unit.match.rule.rule.plain_transposed
    return unit.companion.role == "packed"


def _constant_bytes(dtype: str, value: float) -> bytes:
    if dtype == "F32":
        return struct.pack("<f", value)
    if dtype == "BF16":
        return struct.pack("<f", value)[2:]
    return struct.pack("<i", int(value))


def _viewed(shape: tuple[int, ...], stored: tuple[int, ...], target: tuple[str, ...], name: str) -> tuple[int, ...]:
    """The engine's view of a rank's part, where the whole tensor, stored as `stored`, is viewed as `target`.

    Dimensions are merged or cut apart; of a dimension that is cut apart the first part is the divided one.
    """
    whole = [int(size) for size in target]
    view: list[int] = []
    i = j = 0
    while i < len(stored) and j < len(whole):
        left, right, local = stored[i], whole[j], shape[i]
        first, i, j = j, i + 1, j + 1
        while left != right:
            if left < right and i < len(stored):
                left, local, i = left * stored[i], local * shape[i], i + 1
            elif right < left and j < len(whole):
                right, j = right * whole[j], j + 1
            else:
                raise InputError(f"{name}: a tensor of shape {list(stored)} cannot be viewed as {whole}")
        view += [local // math.prod(whole[first + 1 : j]), *whole[first + 1 : j]]
    view += [1] * (len(whole) - j)
    if math.prod(view) != math.prod(shape):
        raise InputError(f"{name}: a tensor of shape {list(stored)} cannot be viewed as {whole}")
    return tuple(view)
