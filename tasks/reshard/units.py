"""What is laid out: the tensors that streams yield, each with its rule and with what its dimensions count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from day0.architecture.bound import BoundFamily, Match
from day0.architecture.companions import Companion, Grain
from day0.architecture.family import Target
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.cuts import Cutter, Kind
from tasks.reshard.writes import Conversion, Piece

FLOATS = ("BF16", "F16", "F32")


@dataclass(slots=True, eq=False)
class Draft:
    """A stream in the making: its pieces are known once the files' headers are."""

    inputs: tuple[TensorInfo, ...]
    conversion: Conversion | None = None
    pieces: list[Piece] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
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


def for_engine(unit: Unit, target: Target, cutter: Cutter) -> Unit:
    """The unit as an engine holds it: its last two dimensions exchanged, its dtype another.

    Raises:
        InputError: a weight that is quantised anew would have to be transposed.
    """
    kind = unit.kind
    cast = target.dtype is not None and unit.companion is None and kind.dtype in FLOATS and kind.dtype != target.dtype
    transpose = target.transpose and len(kind.shape) >= 2
    if not (cast or transpose):
        return unit
    dtype = target.dtype if cast and target.dtype else kind.dtype
    shape, grains = kind.shape, kind.grains
    if transpose:
        shape, grains = (*shape[:-2], shape[-1], shape[-2]), (*grains[:-2], grains[-1], grains[-2])
    before = unit.draft.conversion
    if before is None:
        name = {(True, False): "cast", (False, True): "transpose"}.get((cast, transpose), "cast+transpose")
        parameters: tuple[tuple[str, Any], ...] = ()
    elif len(before.outputs) == 1:  # it computes out, and may as well write the dtype that is wanted
        name = f"{before.name}+transpose" if transpose else before.name
        parameters = before.parameters
    else:
        raise InputError(f"{unit.name}: the engine wants it transposed, which is not done together with {before.name}")
    draft = Draft(unit.draft.inputs, Conversion(name, ((dtype, shape),), parameters))
    return replace(unit, kind=cutter.kind(kind.rule, shape, dtype, grains), draft=draft)


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
