"""What is stored of a model: exactly, by a checkpoint's headers; predicted, by its config; after a conversion.

Kept by rules as the structure is: tensors of one rule that are stored alike are one group, so that a checkpoint of half
a million tensors is some hundred groups, and whatever is asked of them costs milliseconds.

Predicted are the tensors of the published checkpoints as far as their configs tell them: what is not quantised is taken
to be in the config's dtype, and a few tensors to be in float32 because their makers store them so
(configs/quantization.yaml).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from day0.architecture.bound import BoundFamily, BoundRule, Match
from day0.architecture.dtypes import SAFETENSORS
from day0.architecture.grains import WHOLE, Grain, grains
from day0.architecture.quantised import Companion, companions, quantised
from day0.architecture.quantization import Quantization, Sized, plain_dtypes
from day0.architecture.quantization_forms import Part
from day0.architecture.stored_groups import Amount, Stored, StoredGroup, meet
from day0.architecture.structure import Structure, TensorGroup, named_mtp
from day0.architecture.weight_dtypes import ScaleRule, WeightDtype, weight_dtype_of
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

__all__ = ["Amount", "Stored", "StoredGroup", "converted", "stored_from_config", "stored_from_headers"]

T = TypeVar("T")

_NAMES = {name: dtype for dtype, name in SAFETENSORS.items()}


def stored_from_headers(bound: BoundFamily, tensors: Mapping[str, TensorInfo]) -> Stored:
    """What a checkpoint's headers say is stored.

    Raises:
        InputError: a tensor has no rule, or another shape than its rule; names it.
    """
    return stored_from_matches(bound, map(bound.match, tensors.values()))


def stored_from_matches(bound: BoundFamily, matches: Iterable[Match]) -> Stored:
    """What is stored in tensors whose rules are known already."""
    first: dict[tuple[object, ...], Match] = {}
    counts: dict[tuple[object, ...], Counter[int | None]] = {}
    for match in matches:
        key = (id(match.rule), id(match.companion), match.tensor.dtype, match.tensor.shape)
        if key not in first:
            first[key], counts[key] = match, Counter()
        place = match.rule.places.get("layer")
        counts[key][None if place is None else match.numbers[place]] += 1
    groups = (
        StoredGroup(held.rule, held.companion, held.tensor.dtype, held.tensor.shape, held.grains, layers, copies, mtp)
        for key, held in first.items()
        for layers, copies, mtp in split_layers(held.rule, counts[key], bound.layers)
    )
    return Stored(tuple(groups), "headers", bound.tied)


def split_layers(
    rule: BoundRule, by_layer: Mapping[int | None, int], layers: int
) -> Iterator[tuple[tuple[int, ...] | None, int, bool]]:
    """Layers with as many copies together, the decoder's apart from those of multi-token prediction."""
    named = named_mtp(rule)
    sets: dict[tuple[bool, int, bool], list[int]] = defaultdict(list)
    for layer, copies in by_layer.items():
        sets[layer is None, copies, named or (layer or 0) >= layers].append(layer or 0)
    for (outside, copies, mtp), listed in sets.items():
        yield None if outside else tuple(sorted(listed)), copies, mtp


def stored_from_config(structure: Structure, quantization: Quantization | None) -> Stored:
    """What a checkpoint of this model holds, predicted."""
    own = _NAMES[structure.config.dtype or "bfloat16"]
    plain = plain_dtypes(structure.config.raw)
    groups: list[StoredGroup] = []
    for group in structure.groups:
        name = group.rule.name
        dtype = next((dtype for pattern, dtype in plain if pattern.match(name)), own)
        for sized, layers in _forms(group, quantization):
            if sized is None:
                groups.append(_plain(group, layers, dtype))
            else:
                groups += _quantised(group, layers, sized)
    if structure.stored_head:
        groups += _tied_head(structure, own)
    return Stored(tuple(groups), "config", structure.family.tied)


def _forms(
    group: TensorGroup, quantization: Quantization | None
) -> Iterator[tuple[Sized | None, tuple[int, ...] | None]]:
    """The layers of a group by how their weights are stored. Copies within a layer (experts) are taken to be alike."""
    if quantization is None:
        yield None, group.layers
        return
    others = {name: 0 for name in group.rule.places if name != "layer"}
    if group.layers is None:
        yield quantization.format_of(group.rule.named(others), group.rule), None
        return
    found: dict[str, tuple[Sized | None, list[int]]] = {}
    for layer in group.layers:
        sized = quantization.format_of(group.rule.named({"layer": layer, **others}), group.rule)
        key = repr(sized) if sized else ""
        found.setdefault(key, (sized, []))[1].append(layer)
    for sized, layers in found.values():
        yield sized, tuple(layers)


def _plain(group: TensorGroup, layers: tuple[int, ...] | None, dtype: str) -> StoredGroup:
    shape, grain = group.rule.shape, whole(group.rule)
    if group.rule.rule.plain_transposed:
        shape, grain = exchanged(shape), exchanged(grain)
    return StoredGroup(group.rule, None, dtype, shape, grain, layers, group.copies, group.mtp)


def _quantised(group: TensorGroup, layers: tuple[int, ...] | None, sized: Sized) -> Iterator[StoredGroup]:
    for part in (sized.form.weight, *sized.beside()):
        companion, shape = _companion(part, group.rule), _shape(part, group.rule, sized)
        grain = grains(shape, group.rule.shape, part.dtype, companion)
        if grain is None:
            blocks = " × ".join(map(str, sized.block(part)))
            raise InputError(
                f"config.json: its quantisation has blocks of {blocks} in {group.rule.name} {list(group.rule.shape)}; "
                f"block sizes must be powers of two"
            )
        yield StoredGroup(group.rule, companion, part.dtype, shape, grain, layers, group.copies, group.mtp)


def _companion(part: Part, rule: BoundRule) -> Companion | None:
    stacked = not rule.name.endswith(".weight") and part.stacked is not None
    ending = part.stacked if stacked else part.ending
    return next((companion for companion in quantised().companions if companion.ending == ending), None)


def _shape(part: Part, rule: BoundRule, sized: Sized) -> tuple[int, ...]:
    *outer, rows, columns = rule.shape
    if part.shape is not None:
        return (*outer, *part.shape)
    if part.order:
        return (columns,)
    made = [1 if size == 0 else -(-n // size) for n, size in zip((rows, columns), sized.block(part), strict=True)]
    companion = _companion(part, rule)
    if companion and companion.transposed:
        made.reverse()
    return (*outer, *made, *((part.last,) if part.last else ()))


def _tied_head(structure: Structure, dtype: str) -> Iterator[StoredGroup]:
    """The head that the checkpoint has although it is the embedding."""
    for rule in structure.family.rules:
        if rule.rule.kind == "head" and not rule.places:
            yield _plain(TensorGroup(rule, None, 1, False), None, dtype)


def whole(rule: BoundRule) -> tuple[Grain, ...]:
    """The grains of a weight that is stored as it is."""
    return tuple(Grain(dim, 1) for dim in range(len(rule.shape)))


def exchanged(pair: tuple[T, ...]) -> tuple[T, ...]:
    """With the last two exchanged."""
    return (*pair[:-2], pair[-1], pair[-2])


def converted(stored: Stored, structure: Structure, weight_dtype: str) -> Stored:
    """What `day0 reshard --weight-dtype` writes of these weights in the layout `hf`.

    A float dtype computes all quantised weights out and casts the checkpoint's own; fp8 and int8 quantise the matrices
    of decoder layers (configs/weight-dtypes.yaml); the two spellings of fp8 have the same bytes.

    Raises:
        InputError: there is no such weight dtype; names the nearest.
    """
    wanted = weight_dtype_of(weight_dtype)[1]
    if wanted.kind == "renamed":
        groups = tuple(
            replace(group, dtype=wanted.stored) if group.is_weight and group.dtype == wanted.source else group
            for group in stored.groups
        )
        return replace(stored, groups=groups)
    own = own_dtype(stored)
    made: list[StoredGroup] = []
    kept: dict[BoundRule, list[StoredGroup]] = defaultdict(list)
    for group in stored.groups:
        if not group.is_weight:
            continue
        new = list(_converted(group, stored, wanted, own))
        made += new
        if new == [group]:
            kept[group.rule].append(group)
    beside = (
        group
        for group in stored.groups
        if not group.is_weight and any(meet(group.layers, weight.layers) for weight in kept[group.rule])
    )
    return replace(stored, groups=(*made, *beside))


def own_dtype(stored: Stored) -> str | None:
    """The dtype of the unquantised weights: the embedding's, or else the most frequent one."""
    counts: Counter[str] = Counter()
    for group in stored.groups:
        if group.companion is None and group.dtype in SAFETENSORS:
            if group.rule.rule.kind == "embedding":
                return group.dtype
            counts[group.dtype] += group.tensors
    return counts.most_common(1)[0][0] if counts else None


def _converted(group: StoredGroup, stored: Stored, wanted: WeightDtype, own: str | None) -> Iterator[StoredGroup]:
    """The tensors that become of a group of weights."""
    if wanted.scale is None:
        yield _as_float(group, stored, wanted.stored, own)
        return
    if _is_already(group, stored, wanted.stored, wanted.scale):
        yield group
        return
    shape = group.rule.shape
    matrix = len(shape) == 2 or (len(shape) == 3 and group.rule.rule.experts is not None)
    large = matrix and all(n >= size for n, size in zip(shape[-2:], wanted.scale.block, strict=True))
    if group.rule.rule.kind not in wanted.of or not large:
        yield _as_float(group, stored, own or "BF16", None)
        return
    yield replace(group, companion=None, dtype=wanted.stored, shape=shape, grains=whole(group.rule))
    outer = len(shape) - 2
    sizes = (Grain(None, WHOLE) if n == 0 else Grain(outer + i, n) for i, n in enumerate(wanted.scale.block))
    yield replace(
        group,
        companion=_scale_named(wanted.scale.ending, group.rule),
        dtype=wanted.scale.dtype,
        shape=_scale_shape(shape, wanted.scale.block),
        grains=(*whole(group.rule)[:outer], *sizes),
    )


def _as_float(group: StoredGroup, stored: Stored, dtype: str, own: str | None) -> StoredGroup:
    if group.companion is None and group.dtype in SAFETENSORS:
        # A dtype beside the checkpoint's own was chosen for its range: it is kept.
        return replace(group, dtype=dtype) if group.dtype == own else group
    scaled = any(beside.companion and beside.companion.role == "scale" for beside in stored.beside(group))
    if not scaled and group.rule.rule.kind in ("router", "buffer", "residual"):
        return group  # a table of ids is what it says
    shape, grain = group.rule.shape, whole(group.rule)
    if group.rule.rule.plain_transposed:
        shape, grain = exchanged(shape), exchanged(grain)
    return replace(group, companion=None, dtype=dtype, shape=shape, grains=grain)


def _is_already(group: StoredGroup, stored: Stored, dtype: str, scale: ScaleRule) -> bool:
    """Stored as it is wanted: the same dtype, scales of the same blocks, no offsets."""
    beside = [other for other in stored.beside(group) if other.companion]
    scales = [other for other in beside if other.companion and other.companion.role == "scale"]
    offsets = any(other.companion and other.companion.role == "offset" for other in beside)
    shape = _scale_shape(group.rule.shape, scale.block) if len(group.rule.shape) > 1 else ()
    return group.dtype == dtype and not offsets and any(other.shape == shape for other in scales)


def _scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    return (*shape[:-2], *(1 if n == 0 else -(-size // n) for size, n in zip(shape[-2:], block, strict=True)))


def _scale_named(ending: str, rule: BoundRule) -> Companion:
    """The companion of a new scale: `.weight` gives way to it, what has no such end gets one more."""
    wanted = f".{ending}" if rule.name.endswith(".weight") else f"_{ending.removeprefix('weight_')}"
    both = [c for c in companions() if c.ending == wanted] or [c for c in companions() if c.ending == f"_{ending}"]
    return both[0]
