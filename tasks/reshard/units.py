"""What is laid out: the tensors that streams yield, each with its rule and with what its dimensions count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from day0.architecture.bound import BoundFamily, Match
from day0.architecture.cuts import Cutter, Kind
from day0.architecture.grains import Grain
from day0.architecture.quantised import Companion
from day0.architecture.rules import Target
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.writes import Conversion, Piece

FLOATS = ("BF16", "F16", "F32")
TRANSPOSED = "+transpose"

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Draft:
    """A stream in the making: its pieces are known once the files' headers are."""

    inputs: tuple[TensorInfo, ...]
    conversion: Conversion | None = None
    pieces: list[Piece] = field(default_factory=list)
    placed: bool = False
    """Whether a file has a part of it, be it empty."""


class Unit(NamedTuple):
    """One tensor that a stream yields (output number `output` of `draft`), to be divided over ranks."""

    name: str
    """As the source has it, or would have it after the conversion."""
    match: Match
    kind: Kind
    draft: Draft
    output: int = 0

    @property
    def tensor(self) -> TensorInfo:
        """The source tensor that a record names as its origin."""
        return self.match.tensor

    @property
    def companion(self) -> Companion | None:
        return self.match.companion


def as_stored(match: Match, cutter: Cutter) -> Unit:
    """A tensor that is copied as it is."""
    tensor = match.tensor
    kind = cutter.kind(match.rule, tensor.shape, tensor.dtype, match.grains)
    return Unit(tensor.name, match, kind, Draft((tensor,)))


def for_engine(unit: Unit, target: Target, cutter: Cutter, companion_dtype: str | None = None) -> Unit:
    """The unit as an engine holds it: its last two dimensions exchanged, its dtype another.

    `companion_dtype` is what the engine holds a tensor beside a quantised weight as; None: as it is stored.

    Raises:
        InputError: a weight that is quantised anew would have to be transposed.
    """
    if unit.kind.dtype in target.view:
        viewed = cutter.kind(unit.kind.rule, unit.kind.shape, target.view[unit.kind.dtype], unit.kind.grains)
        unit = unit._replace(kind=viewed)
    if target.function:
        conversion = Conversion(target.function, (("F32", unit.kind.shape),))
        computed = cutter.kind(unit.kind.rule, unit.kind.shape, "F32", unit.kind.grains)
        return unit._replace(kind=computed, draft=Draft(unit.draft.inputs, conversion))
    kind, before = unit.kind, unit.draft.conversion
    wanted = target.dtype if unit.companion is None else companion_dtype
    cast = wanted is not None and kind.dtype in FLOATS and kind.dtype != wanted
    transpose = len(kind.shape) >= 2 and target.transpose != is_transposed(kind.grains)
    if not (cast or transpose):
        return unit
    dtype = wanted if cast and wanted else kind.dtype
    shape, grains = (exchanged(kind.shape), exchanged(kind.grains)) if transpose else (kind.shape, kind.grains)
    if before is None:
        name = {(True, False): "cast", (False, True): "transpose"}.get((cast, transpose), "cast+transpose")
        conversion = Conversion(name, ((dtype, shape),))
    elif len(before.outputs) == 1:  # it computes out, and may as well write the dtype and order that are wanted
        turned = before.name.removesuffix(TRANSPOSED) if transpose else before.name
        name = f"{turned}{TRANSPOSED}" if transpose and turned == before.name else turned
        conversion = Conversion(name, ((dtype, shape),), before.parameters)
    else:
        raise InputError(f"{unit.name}: the engine wants it transposed, which is not done together with {before.name}")
    laid = cutter.kind(kind.rule, shape, dtype, grains)
    return unit._replace(kind=laid, draft=Draft(unit.draft.inputs, conversion))


def exchanged(values: tuple[T, ...]) -> tuple[T, ...]:
    """A shape, or what belongs to its dimensions, with the last two exchanged."""
    return (*values[:-2], values[-1], values[-2])


def is_transposed(grains: tuple[Grain, ...]) -> bool:
    """Whether the last two dimensions stand the other way round than in the weight's rule."""
    first, last = (grain.dim for grain in grains[-2:]) if len(grains) >= 2 else (None, None)
    return first is not None and last is not None and first > last


def whole_grains(shape: tuple[int, ...]) -> tuple[Grain, ...]:
    """The grains of a tensor that is not quantised."""
    return tuple(Grain(dim, 1) for dim in range(len(shape)))


def stage_of(match: Match, stage_by_layer: Mapping[int, int], stages: int) -> int:
    """The pipeline stage of a tensor: its layer's; multi-token prediction layers stand after the last."""
    layer = match.number("layer")
    if layer is None:
        return 0 if match.rule.rule.stage == "first" else stages - 1
    return stage_by_layer.get(layer, stages - 1)


def is_mtp(match: Match, family: BoundFamily) -> bool:
    """Whether a tensor belongs to multi-token prediction, which an engine loads as a model of its own."""
    layer = match.number("layer")
    return match.rule.rule.kind == "mtp" or (layer is not None and layer >= family.layers) or _in_mtp(match)


def _in_mtp(match: Match) -> bool:
    return match.rule.name.startswith("mtp.") or ".mtp." in match.rule.name
