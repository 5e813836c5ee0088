"""Where each rank's part of a tensor stands: in which file, under which name, joined with what.

`hf` keeps the source's names and its cut into shards, one folder a rank. `vllm` writes the names and fused tensors of
the engine's own state dict (sharded_state), `deepseek` those of DeepSeek's inference code.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from day0.architecture.bound import BoundFamily, normalised
from day0.architecture.family import Target
from day0.artifacts.shards import Dropped
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS
from tasks.reshard.cuts import Cut, Cutter, filled_up, in_halves, nbytes, of_first_rows, zeros
from tasks.reshard.slicing import World, expert_range, stage_layers
from tasks.reshard.units import Unit, for_engine, is_mtp, is_transposed, stage_of

#: The least run of bytes that is worth a file of its own where blocks can be shared.
LEAST_SHARED = 8 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """A file to write, and whose it is."""

    name: str
    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A tensor of a file: parts of units that follow each other, or a constant (its bytes, repeated)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[Unit, Cut], ...] = ()
    constant: bytes | None = None
    note: str = ""

    @property
    def nbytes(self) -> int:
        return nbytes(self.dtype, self.shape)


class Layout(ABC):
    """Takes units and says which files there are, with what in them."""

    def __init__(self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, share_block: int = 0) -> None:
        self.bound, self.world, self.cutter = bound, world, cutter
        self.part_bytes, self.share_block = part_bytes, share_block
        self.dropped: list[Dropped] = []
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

    def share_at(self, tensors: list[Placed]) -> tuple[int, int] | None:
        """Where in a block the data of such a file should begin, and the block size; None: anywhere."""
        return None

    def owners(self, unit: Unit) -> range:
        """The ranks of a stage that hold a part of the unit: all, or those that an expert belongs to."""
        expert = unit.match.number("expert")
        if expert is None or unit.match.rule.rule.kind != "routed_expert":
            return range(self.world.stage_ranks)
        held = unit.match.rule.numbers["expert"]
        count = len(held) if held is not None else 0
        base, more = divmod(count, self.world.ep)
        expert_range(count, self.world.ep, 0)  # refuses more groups than experts
        group = expert // (base + 1) if expert < more * (base + 1) else more + (expert - more * (base + 1)) // base
        return range(group * self.world.expert_tp, (group + 1) * self.world.expert_tp)

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


class HfLayout(Layout):
    """A complete safetensors folder a rank, with the source's names and its cut into shards."""

    def __init__(self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, share_block: int = 0) -> None:
        super().__init__(bound, world, cutter, part_bytes, share_block)
        self.held: dict[tuple[int, str], list[Placed]] = {}

    def place(self, units: Iterable[Unit]) -> None:
        listed = sorted(units, key=lambda unit: (unit.draft.inputs[0].file, unit.draft.inputs[0].begin, unit.output))
        self.note_head(listed)
        for unit in listed:
            file, cuts = unit.draft.inputs[0].file, self.cutter.cuts(unit.kind)
            empty = 0 in unit.kind.shape
            for stage in self.stages(unit):
                for rank in self.owners(unit):
                    cut = cuts[rank]
                    if 0 in cut.shape and not empty:
                        continue  # an uneven split leaves the last ranks nothing
                    placed = Placed(unit.name, unit.kind.dtype, cut.shape, ((unit, cut),))
                    self.held.setdefault((stage * self.world.stage_ranks + rank, file), []).append(placed)

    def files(self) -> Iterator[tuple[Place, list[Placed]]]:
        by_rank: dict[int, list[list[Placed]]] = {}
        for (rank, _), tensors in sorted(self.held.items(), key=lambda item: item[0]):
            parts = self._runs(tensors) if self.share_block else [tensors]
            by_rank.setdefault(rank, []).extend(parts)
        for rank, files in by_rank.items():
            for number, tensors in enumerate(files, 1):
                name = f"rank-{rank:05d}/model-{number:05d}-of-{len(files):05d}.safetensors"
                yield Place(name, rank), tensors

    def _runs(self, tensors: list[Placed]) -> list[list[Placed]]:
        """Runs of whole tensors that lie side by side in the source, each by itself; the rest together."""
        runs: list[list[Placed]] = []
        end = -1
        for placed in tensors:
            stored = self._stored(placed)
            if stored is None:
                end = -1
                continue
            if stored[0] != end:
                runs.append([])
            runs[-1].append(placed)
            end = stored[1]
        large = [run for run in runs if sum(placed.nbytes for placed in run) >= LEAST_SHARED]
        taken = {id(placed) for run in large for placed in run}
        rest = [placed for placed in tensors if id(placed) not in taken]
        return [*large, *([rest] if rest else [])]

    def share_at(self, tensors: list[Placed]) -> tuple[int, int] | None:
        if not self.share_block or not tensors:
            return None
        stored = self._stored(tensors[0])
        return (stored[0] % self.share_block, self.share_block) if stored else None

    @staticmethod
    def _stored(placed: Placed) -> tuple[int, int] | None:
        """Where the tensor's bytes lie in the source, if they are one run that is copied as it is."""
        if len(placed.parts) != 1:
            return None
        unit, cut = placed.parts[0]
        if unit.draft.conversion or len(cut.runs) != 1 or cut.runs[0].rows != 1 or cut.padding:
            return None
        begin = unit.draft.inputs[0].begin + cut.runs[0].offset
        return begin, begin + cut.runs[0].nbytes


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

    def __init__(self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, share_block: int = 0) -> None:
        super().__init__(bound, world, cutter, part_bytes, share_block)
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
        companion = parts[0][1].companion
        if join.target is not None and join.target.shape and (companion is None or companion.role == "packed"):
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
        if target.least and self.world.expert_tp > 1 and unit.kind.grains and unit.kind.grains[0].dim == 0:
            cut = filled_up(cut, -(-int(target.least) // unit.kind.grains[0].size), unit.kind)
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


class VllmLayout(NamedLayout):
    """vLLM's sharded_state: the state dict of each rank's own model."""

    name = "vllm"

    @staticmethod
    def expert_parallel(tp: int, pp: int, ep: int) -> int:
        if ep not in (1, tp):
            raise InputError(
                f"layout 'vllm' with tp {tp} has ep 1 or {tp}, not {ep}: its loader tells files apart by the tensor "
                "and pipeline parallel rank alone, and the engine divides experts over all ranks of a stage"
            )
        return ep

    def file_name(self, stage: int, rank: int, part: int) -> str:
        if self.world.pp > 1:
            return f"model-pp-{stage}-tp-{rank}-part-{part}.safetensors"
        return f"model-rank-{rank}-part-{part}.safetensors"


class DeepSeekLayout(NamedLayout):
    """What DeepSeek's own inference code loads: one file a rank, experts whole."""

    name = "deepseek"

    def __init__(self, bound: BoundFamily, world: World, cutter: Cutter, part_bytes: int, share_block: int = 0) -> None:
        super().__init__(bound, world, cutter, 1 << 62, share_block)

    @staticmethod
    def expert_parallel(tp: int, pp: int, ep: int) -> int:
        if pp > 1:
            raise InputError("layout 'deepseek' has no pipeline parallelism; use pp 1")
        if ep not in (1, tp):
            raise InputError(f"layout 'deepseek' with tp {tp} has ep {tp}: every rank holds whole experts")
        return tp

    def _apart(self, unit: Unit, joins: Mapping[tuple[int, str], object]) -> None:
        reason = "multi-token prediction: the loader takes no tensor that its model lacks"
        self.dropped += [Dropped(tensor=tensor.name, reason=reason) for tensor in unit.draft.inputs]

    def file_name(self, stage: int, rank: int, part: int) -> str:
        return f"model{rank}-mp{self.world.tp}.safetensors"


LAYOUTS: dict[str, type[Layout]] = {"hf": HfLayout, "vllm": VllmLayout, "deepseek": DeepSeekLayout}


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
