"""From tensor headers to byte ranges: which bytes of which source file go where. Reads no tensor data.

The plan is a pure function of the headers, the family's rules, the config and the sizes asked for. Tensors become
units (as stored, or as a conversion makes them), the layout says in which file each rank's part of a unit stands and
under which name, and then, with every header known, the pieces get their offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from json.encoder import encode_basestring as quoted
from typing import Any

from day0 import collector
from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, match_all
from day0.architecture.cuts import Cut, Cutter
from day0.architecture.family import Family
from day0.architecture.rules import TOWERS
from day0.architecture.slicing import Range, World, stage_layers
from day0.artifacts.shards import Dropped
from day0.checkpoint import Checkpoint
from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS
from tasks.reshard.conversions import Chosen, choose_conversions
from tasks.reshard.convert.registry import describe
from tasks.reshard.layouts.base import Layout, Placed
from tasks.reshard.layouts.known import LAYOUTS
from tasks.reshard.reflink import BLOCK
from tasks.reshard.units import Draft, Unit
from tasks.reshard.writes import Fill, Origin, Piece, Stream, TargetFile, WritePlan, Written, with_changes


@collector.paused()
def plan_writes(
    checkpoint: Checkpoint,
    family: Family,
    layout: str,
    tp: int,
    pp: int = 1,
    ep: int = 1,
    weight_dtype: str | None = None,
    part_bytes: int = 5 << 30,
    *,
    towers: str = "auto",
    cut_to_share: bool = False,
) -> WritePlan:
    """What to read, convert and write where.

    Args:
        weight_dtype: what weights are written as; None: as they are stored.
        part_bytes: about the largest file of layout `vllm` (one tensor may exceed it).
        towers: `split` or `replicate` towers of images and sound; `auto` splits them where everything divides.
        cut_to_share: whether files of layout `hf` begin and end where runs of whole tensors do, for a file system that
            can share blocks.

    Raises:
        InputError: headers and config disagree, a tensor is not known, a size does not divide, a layout or conversion
            does not apply; names the tensor, the dimension and the sizes.
    """
    bound = bind(family, checkpoint.config, checkpoint.tensors)
    layout_class = _layout_class(bound, layout)
    world = World(tp, pp, layout_class.expert_parallel(tp, pp, ep))
    if ep > 1 and not any(rule.rule.kind == "routed_expert" for rule in bound.rules):
        raise InputError(f"ep is {ep}, but family {family.name!r} has no experts in this model; use ep 1")
    rule = bound.layouts.get(layout)
    cutter = Cutter(world, rule.vocab_multiple if rule else 1, towers == "replicate")
    matches = match_all(bound, checkpoint.tensors)
    dropped = [Dropped(tensor=m.tensor.name, reason=m.rule.rule.drop) for m in matches if m.rule.rule.drop]
    chosen = choose_conversions([m for m in matches if not m.rule.rule.drop], bound, weight_dtype, cutter, layout)
    if towers == "auto":
        cutter.whole_towers = not _towers_divide(chosen.units, cutter)
    config_changes = {**_untied(bound, chosen, layout), **chosen.config_changes}
    if chosen.config_changes:
        bound = _as_written(bound, checkpoint, config_changes, chosen, layout)
    laid_out = layout_class(bound, world, cutter, part_bytes, cut_to_share)
    laid_out.place(chosen.units)
    del matches  # half of the memory
    chosen.units.clear()
    files, streams, fills = _assemble(laid_out, checkpoint)
    return WritePlan(
        layout=layout,
        engine=(rule.engine if rule else None) or "none",
        tp=world.tp,
        pp=world.pp,
        ep=world.ep,
        ranks=world.ranks(),
        stages=tuple(stage_layers(bound.layers, pp)),
        files=files,
        streams=streams,
        fills=fills,
        dropped=tuple(sorted([*dropped, *chosen.dropped, *laid_out.dropped], key=lambda d: d.tensor)),
        config_changes=config_changes,
    )


def _as_written(
    bound: BoundFamily, checkpoint: Checkpoint, changes: Mapping[str, Any], chosen: Chosen, layout: str
) -> BoundFamily:
    """The family with the constants that the engine wants of the written weights, which are quantised otherwise.

    What the checkpoint has in place of one that is wanted no more, such as a scale of the KV cache, is dropped.
    """
    written = bind(bound.family, with_changes(checkpoint.config, changes), checkpoint.tensors)
    before, after = ({c.name for c, _, _ in held.constants.get(layout, ())} for held in (bound, written))
    kept = []
    for unit in chosen.units:
        target = unit.match.rule.targets.get(layout)
        if target and target.name in before - after:
            reason = "the engine has no such tensor beside the weights as they are converted"
            chosen.dropped.append(Dropped(tensor=unit.name, reason=reason))
        else:
            kept.append(unit)
    chosen.units[:] = kept
    return replace(bound, constants=written.constants)


def _layout_class(bound: BoundFamily, layout: str) -> type[Layout]:
    supported = sorted({"hf", *bound.layouts} & LAYOUTS.keys())
    if layout not in supported:
        raise InputError(
            f"layout {layout!r} is not described for family {bound.family.name!r}; it has: {', '.join(supported)}"
        )
    return LAYOUTS[layout]


def _towers_divide(units: Iterable[Unit], cutter: Cutter) -> bool:
    """Whether every tensor of the towers can be divided over the tensor parallel ranks."""
    cutter.whole_towers = False
    kinds = {unit.kind for unit in units if unit.match.rule.rule.kind in TOWERS}
    try:
        for kind in kinds:
            cutter.cuts(kind)
    except InputError:
        return False
    finally:
        cutter.forget(kinds)
    return True


def _untied(bound: BoundFamily, chosen: Chosen, layout: str) -> dict[str, Any]:
    """The config says tied, the checkpoint has a head of its own: both are written, whether equal or not."""
    stored = any(unit.match.rule.rule.kind == "head" for unit in chosen.units)
    return {bound.family.tied: False} if layout == "vllm" and stored and bound.tied else {}


def _assemble(
    layout: Layout, checkpoint: Checkpoint
) -> tuple[tuple[TargetFile, ...], dict[str, tuple[Stream, ...]], tuple[Fill, ...]]:
    """Headers, then offsets, then pieces."""
    files: list[TargetFile] = []
    fills: list[Fill] = []
    drafts: list[Draft] = []
    headers: dict[tuple[Any, ...], bytes] = {}
    for number, (place, tensors) in enumerate(layout.files()):
        laid = _laid(tensors)
        data_at = layout.data_at(laid)
        described = (data_at, *chain.from_iterable((p.name, p.dtype, p.shape) for p, _ in laid))
        if described not in headers:  # as a rule the ranks' files of a shard have the same: once in memory, and made
            headers[described] = _header(laid, data_at)
        header = headers[described]
        written = []
        at = len(header)
        for placed, nbytes in laid:
            begin = at
            for unit, cut in placed.parts:
                at = _pieces(unit, cut, number, at, fills)
                if not unit.draft.placed:
                    unit.draft.placed = True
                    drafts.append(unit.draft)
            if placed.constant is not None:
                fills.append(Fill(number, at, placed.constant, nbytes // len(placed.constant)))
                at += nbytes
            if placed.origins is None:
                placed.origins = tuple(_origins(placed))
            written.append(Written(placed.name, placed.dtype, placed.shape, begin, at, placed.origins))
        files.append(TargetFile(place.name, place.rank, header, at, tuple(written)))
    streams: dict[str, list[Stream]] = {name: [] for name in checkpoint.files}
    while drafts:
        draft = drafts.pop()
        streams[draft.inputs[0].file].append(Stream(draft.inputs, tuple(draft.pieces), draft.conversion))
    for listed in streams.values():
        listed.sort(key=lambda stream: stream.inputs[0].begin)
    return tuple(files), {name: tuple(listed) for name, listed in streams.items()}, tuple(fills)


def _laid(tensors: Sequence[Placed]) -> list[tuple[Placed, int]]:
    """A file's tensors in the order of their data, with their bytes: as they come, or, where one would not lie on a
    multiple of its element's size (readers view the bytes as they are), the largest elements first."""
    for ordered in (tensors, sorted(tensors, key=lambda placed: -DTYPE_BITS[placed.dtype])):
        offset, aligned, laid = 0, True, []
        for placed in ordered:
            bits = DTYPE_BITS[placed.dtype]
            if bits > 8 and offset * 8 % bits:
                aligned = False
            nbytes = placed.nbytes
            laid.append((placed, nbytes))
            offset += nbytes
        if aligned:
            break
    return laid


def _pieces(unit: Unit, cut: Cut, file: int, at: int, fills: list[Fill]) -> int:
    """The pieces of one rank's part of a unit, from byte `at` of the file on; returns where they end."""
    for run in cut.runs:
        unit.draft.pieces.append(Piece(file, at, run.offset, run.rows, run.run, run.stride, unit.output))
        at += run.rows * run.run
    if cut.padding:
        fills.append(Fill(file, at, bytes(cut.row_bytes), cut.padding))
        at += cut.row_bytes * cut.padding
    return at


def _origins(placed: Placed) -> Iterator[Origin]:
    for unit, cut in placed.parts:
        conversion = describe(unit.draft.conversion) if unit.draft.conversion else "none"
        for run in cut.runs:
            for box in run.boxes:
                yield Origin(unit.tensor.name, box, run.note or conversion, run.axis)
        if cut.padding:
            rest: tuple[Range, ...] = tuple((0, n) for n in unit.kind.shape[1:])
            yield Origin(None, ((0, cut.padding), *rest), "zeros")
    if placed.constant is not None:
        yield Origin(None, (), f"constant {placed.note}")


def _header(laid: Sequence[tuple[Placed, int]], data_at: int | None) -> bytes:
    """A safetensors file up to its data, which is aligned to 8 bytes, or begins `data_at` bytes into a page.

    The kernel copies a page that lies in the target as in the source at once, or shares it; any other is two copies.
    """
    entries = ['"__metadata__":{"format":"pt"}']  # transformers refuses a file without it
    end = 0
    for placed, nbytes in laid:
        begin, end = end, end + nbytes
        shape = ",".join(map(str, placed.shape))
        entries.append(
            f'{quoted(placed.name)}:{{"dtype":"{placed.dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}'
        )
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8 if data_at is None else (data_at - 8 - len(text)) % BLOCK)
    return struct.pack("<Q", len(text)) + text


def tensors_of(plan: WritePlan) -> Mapping[str, int]:
    """Every source tensor that the plan reads, and how often: once, if the plan is right."""
    read: dict[str, int] = {}
    for streams in plan.streams.values():
        for stream in streams:
            for tensor in stream.inputs:
                read[tensor.name] = read.get(tensor.name, 0) + 1
    return read
