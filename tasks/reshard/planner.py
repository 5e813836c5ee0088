"""From tensor headers to byte ranges: which bytes of which source file go where. Reads no tensor data.

The plan is a pure function of the headers, the family's rules and the layout. Groups of tensors are taken in the
order of their source names, so the bytes that come out do not depend on how the source is cut into shards, and every
source file of a usual release is read from front to back. Within each target file the steps ascend without a gap:
the writer can hash what it writes as it goes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from day0.architecture.family import Family, LayoutRule, resolve_sizes
from day0.artifacts.shards import Dropped
from day0.checkpoint import Checkpoint
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS, TensorInfo
from tasks.reshard.slicing import Range, rank_range, stage_layers
from tasks.reshard.sources import Source, match_sources, refuse_conversion, refuse_quantised
from tasks.reshard.writes import Copy, Fill, Origin, Piece, TargetFile, WritePlan, Written

MAX_RANKS = 4096


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank gets of one source tensor: a range along the split dimension, then `padding` rows of zeros."""

    source: TensorInfo
    dim: int | None
    range: Range
    padding: int

    @property
    def shape(self) -> tuple[int, ...]:
        if self.dim is None:
            return self.source.shape
        length = self.range[1] - self.range[0] + self.padding
        return tuple(length if i == self.dim else n for i, n in enumerate(self.source.shape))


@dataclass(frozen=True, slots=True)
class _Group:
    """Tensors joined into one, for the ranks of one stage (`names` by pipeline stage); or a constant."""

    sources: tuple[Source, ...]
    names: Mapping[int, str]
    constant: bytes | None = None


def plan_writes(
    checkpoint: Checkpoint,
    family: Family,
    layout: str,
    tp: int,
    pp: int = 1,
    ep: int = 1,
    weight_dtype: str | None = None,
    part_bytes: int = 5 << 30,
) -> WritePlan:
    """What to copy where, for `tp` × `pp` ranks; files of at most about `part_bytes` (one tensor may exceed it).

    Raises:
        InputError: headers and config disagree, a tensor is not known, a size does not divide, a conversion is
            asked for; names the tensor, the dimension and the sizes.
    """
    rule = _layout_rule(family, layout, tp, pp, ep)
    refuse_quantised(checkpoint.config)
    sizes = resolve_sizes(family, checkpoint.config)
    sources = match_sources(checkpoint, family, sizes)
    refuse_conversion(sources, weight_dtype)
    dropped = tuple(Dropped(tensor=s.tensor.name, reason=s.rule.drop) for s in sources if s.rule.drop)
    kept = [s for s in sources if not s.rule.drop]
    head_is_stored = any(s.rule.kind == "head" for s in kept)
    tied = family.is_tied(checkpoint.config) and not head_is_stored
    groups = _groups(kept, rule, layout, sizes["layers"], pp, tied)
    laid_out = _Layout(layout, family, sizes, tp, pp, part_bytes)
    for group in groups:
        laid_out.add(group)
    files, steps = laid_out.finish()
    untie = layout == "vllm" and head_is_stored and family.is_tied(checkpoint.config)
    return WritePlan(
        layout=layout,
        engine=rule.engine or "none",
        tp=tp,
        pp=pp,
        files=files,
        steps=steps,
        dropped=dropped,
        # The config says tied, the checkpoint has a head of its own: both are written, whether equal or not.
        config_changes={family.tied: False} if untie else {},
    )


def _layout_rule(family: Family, layout: str, tp: int, pp: int, ep: int) -> LayoutRule:
    if layout not in family.layouts:
        supported = ", ".join(sorted(family.layouts))
        raise InputError(f"layout {layout!r} is not for family {family.name!r}; it has: {supported}")
    for name, size in (("tp", tp), ("pp", pp), ("ep", ep)):
        if size < 1:
            raise InputError(f"{name} is {size}; it must be at least 1")
    if tp * pp > MAX_RANKS:
        raise InputError(f"tp {tp} × pp {pp} is {tp * pp:,} ranks; at most {MAX_RANKS:,} are written")
    if ep > 1:
        raise InputError(f"ep is {ep}, but family {family.name!r} has no experts; use ep 1")
    return family.layouts[layout]


def _groups(kept: list[Source], rule: LayoutRule, layout: str, layers: int, pp: int, tied: bool) -> list[_Group]:
    """Source tensors joined as the layout wants them, in the order of their (first) source name."""
    spans = stage_layers(layers, pp)
    stage_of = {layer: stage for stage, (first, last) in enumerate(spans) for layer in range(first, last)}
    joined: dict[str, list[Source]] = {}
    for source in kept:
        joined.setdefault(_target_name(source, layout), []).append(source)
    groups = []
    for name, sources in joined.items():
        parts = tuple(sorted(sources, key=lambda s: s.rule.targets[layout].part if layout in s.rule.targets else 0))
        first = parts[0]
        stage = stage_of[first.layer] if first.layer is not None else (0 if first.rule.stage == "first" else pp - 1)
        names = {stage: name}
        if tied and first.rule.kind == "embedding":
            # The last stage needs the shared matrix as its head; where it is the first stage too, it has it once.
            names[pp - 1] = rule.tied_name or name
        groups.append(_Group(parts, names))
    for constant in rule.constants:
        value = struct.pack("<f", constant.value)
        for layer in range(layers):
            groups.append(_Group((), {stage_of[layer]: constant.name.replace("{layer}", str(layer))}, value))
    return sorted(groups, key=_order)


def _target_name(source: Source, layout: str) -> str:
    if layout not in source.rule.targets:
        return source.tensor.name
    return source.rule.targets[layout].name.replace("{layer}", str(source.layer))


def _order(group: _Group) -> str:
    return min((s.tensor.name for s in group.sources), default=min(group.names.values()))


class _Layout:
    """Lays groups out in files: first all sizes, then, with the headers known, the offsets."""

    def __init__(
        self, layout: str, family: Family, sizes: Mapping[str, int], tp: int, pp: int, part_bytes: int
    ) -> None:
        self.layout, self.rule, self.family, self.sizes = layout, family.layouts[layout], family, sizes
        self.tp, self.pp, self.part_bytes = tp, pp, part_bytes
        self.groups: list[tuple[_Group, dict[int, int]]] = []
        self.filled = dict.fromkeys(range(pp), 0)
        """Per stage, bytes in the part that is being filled."""
        self.part = dict.fromkeys(range(pp), 0)

    def add(self, group: _Group) -> None:
        """Give the group a part in each of its stages: a new one where it would grow beyond the limit."""
        size = sum(_nbytes(p.source.dtype, p.shape) for p in self._parts(group, 0)) or len(group.constant or b"")
        for stage in group.names:
            if self.filled[stage] and self.filled[stage] + size > self.part_bytes:
                self.part[stage] += 1
                self.filled[stage] = 0
            self.filled[stage] += size
        self.groups.append((group, {stage: self.part[stage] for stage in group.names}))

    def finish(self) -> tuple[tuple[TargetFile, ...], tuple[Copy | Fill, ...]]:
        """The files with their headers, and the steps in order."""
        keys = [(s, r, part) for s in range(self.pp) for r in range(self.tp) for part in range(self.part[s] + 1)]
        index = {key: number for number, key in enumerate(keys)}
        tensors: dict[int, list[Written]] = {number: [] for number in index.values()}
        cursor = dict.fromkeys(index.values(), 0)
        steps: list[Copy | Fill] = []
        for group, part_of in self.groups:
            places = [
                (index[stage, r, part_of[stage]], r, name)
                for stage, name in group.names.items()
                for r in range(self.tp)
            ]
            self._place(group, places, tensors, cursor, steps)
        headers = {number: _header(tensors[number]) for number in index.values()}
        files = []
        for (stage, r, part), number in index.items():
            start = len(headers[number])
            moved = tuple(_moved(t, start) for t in tensors[number])
            name = self._file_name(stage, r, part)
            files.append(TargetFile(name, stage * self.tp + r, headers[number], start + cursor[number], moved))
        return tuple(files), tuple(_shifted(step, headers) for step in steps)

    def _place(
        self,
        group: _Group,
        places: list[tuple[int, int, str]],
        tensors: dict[int, list[Written]],
        cursor: dict[int, int],
        steps: list[Copy | Fill],
    ) -> None:
        """Append the group to its files. Offsets count from the start of the data."""
        begin = {number: cursor[number] for number, _, _ in places}
        if group.constant is not None:
            for number, _, name in places:
                steps.append(Fill(number, cursor[number], group.constant, 1))
                cursor[number] += len(group.constant)
                fill = Origin(None, (), f"constant {struct.unpack('<f', group.constant)[0]:g}")
                tensors[number].append(Written(name, "F32", (), begin[number], cursor[number], (fill,)))
            return
        of_rank = [self._parts(group, r) for r in range(self.tp)]
        for position, source in enumerate(group.sources):
            pieces, fills = [], []
            for number, r, _ in places:
                part = of_rank[r][position]
                piece = _piece(part, number, cursor[number])
                if piece.nbytes:
                    pieces.append(piece)
                cursor[number] += piece.nbytes
                if part.padding:
                    row = _nbytes(part.source.dtype, part.source.shape[1:])
                    fills.append(Fill(number, cursor[number], bytes(row), part.padding))
                    cursor[number] += row * part.padding
            steps.append(Copy(source.tensor, tuple(pieces)))
            steps.extend(fills)
        for number, r, name in places:
            parts = of_rank[r]
            shape = parts[0].shape
            if len(parts) > 1:
                shape = (sum(p.shape[0] for p in parts), *shape[1:])
            origins = tuple(o for p in parts for o in _origins(p))
            written = Written(name, parts[0].source.dtype, shape, begin[number], cursor[number], origins)
            tensors[number].append(written)

    def _parts(self, group: _Group, rank: int) -> list[_Part]:
        return [self._part(source, rank) for source in group.sources]

    def _part(self, source: Source, rank: int) -> _Part:
        split, tensor = source.rule.split, source.tensor
        if split.dim is None:
            return _Part(tensor, None, (0, 0), 0)
        length = tensor.shape[split.dim]
        if split.how == "vocab":
            multiple = self.rule.vocab_multiple
            padded = math.ceil(length / multiple) * multiple
            first, last = rank_range(padded, padded, self.tp, rank, False, f"{tensor.name}: padded vocabulary")
            kept = (min(first, length), min(last, length))
            return _Part(tensor, 0, kept, (last - first) - (kept[1] - kept[0]))
        units = self.sizes[split.by] if split.by else length
        what = f"{tensor.name}: {self.family.sizes[split.by].key if split.by else split.how}"
        return _Part(tensor, split.dim, rank_range(length, units, self.tp, rank, split.replicate, what), 0)

    def _file_name(self, stage: int, rank: int, part: int) -> str:
        if self.layout == "hf":
            parts = self.part[stage] + 1
            return f"rank-{stage * self.tp + rank:05d}/model-{part + 1:05d}-of-{parts:05d}.safetensors"
        if self.pp > 1:
            return f"model-pp-{stage}-tp-{rank}-part-{part}.safetensors"
        return f"model-rank-{rank}-part-{part}.safetensors"


def _piece(part: _Part, target: int, target_offset: int) -> Piece:
    source, (first, last) = part.source, part.range
    if part.dim is None:
        return Piece(target, target_offset, source.begin, 1, source.nbytes, source.nbytes)
    inner = _nbytes(source.dtype, source.shape[part.dim + 1 :])
    outer = math.prod(source.shape[: part.dim])
    run, stride = (last - first) * inner, source.shape[part.dim] * inner
    if run == stride:
        outer, run = 1, outer * run
    return Piece(target, target_offset, source.begin + first * inner, outer, run, max(stride, run))


def _origins(part: _Part) -> Iterable[Origin]:
    ranges = tuple(part.range if i == part.dim else (0, n) for i, n in enumerate(part.source.shape))
    if part.dim is None or part.range[1] > part.range[0]:
        yield Origin(part.source.name, ranges, "none")
    if part.padding:
        yield Origin(None, ((0, part.padding), *ranges[1:]), "zeros")


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * DTYPE_BITS[dtype] // 8


def _header(tensors: list[Written]) -> bytes:
    """A safetensors file up to its data, which is aligned to 8 bytes."""
    content: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file without it
    for t in tensors:
        content[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [t.begin, t.end]}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _moved(tensor: Written, by: int) -> Written:
    return Written(tensor.name, tensor.dtype, tensor.shape, tensor.begin + by, tensor.end + by, tensor.origins)


def _shifted(step: Copy | Fill, headers: Mapping[int, bytes]) -> Copy | Fill:
    """The same step with target offsets from the start of the file."""
    if isinstance(step, Fill):
        return Fill(step.target, step.target_offset + len(headers[step.target]), step.pattern, step.count)
    pieces = tuple(
        Piece(p.target, p.target_offset + len(headers[p.target]), p.source_offset, p.rows, p.run, p.stride)
        for p in step.pieces
    )
    return Copy(step.source, pieces)
