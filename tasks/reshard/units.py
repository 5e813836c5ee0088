"""What is laid out: the tensors that streams yield, each with its rule and with what its dimensions count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from day0.architecture.bound import BoundFamily, Match
from day0.architecture.companions import WHOLE, Companion, Grain
from day0.architecture.family import Target
from day0.safetensors_header import TensorInfo
from tasks.reshard.cuts import Cutter, Kind
from tasks.reshard.writes import Conversion, Piece


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
    """The unit as an engine holds it: its last two dimensions exchanged, its dtype another."""
    kind, draft = unit.kind, unit.draft
    if target.transpose and len(kind.shape) >= 2:
        shape = (*kind.shape[:-2], kind.shape[-1], kind.shape[-2])
        grains = (*kind.grains[:-2], kind.grains[-1], kind.grains[-2])
        draft = _then(draft, "transpose", unit.output, kind.dtype, shape)
        kind = cutter.kind(kind.rule, shape, kind.dtype, grains)
    floats = ("BF16", "F16", "F32")
    if target.dtype and unit.companion is None and kind.dtype != target.dtype and kind.dtype in floats:
        draft = _then(draft, "cast", unit.output, target.dtype, kind.shape)
        kind = cutter.kind(kind.rule, kind.shape, target.dtype, kind.grains)
    return unit if draft is unit.draft else replace(unit, kind=kind, draft=draft)


def _then(draft: Draft, name: str, output: int, dtype: str, shape: tuple[int, ...]) -> Draft:
    """A draft with one more conversion of its only output."""
    if draft.conversion is None:
        return Draft(draft.inputs, Conversion(name, ((dtype, shape),)))
    before = draft.conversion
    steps = (*before.parameter("then", ()), (name, dtype, shape))
    parameters = dict(before.parameters) | {"then": steps}
    outputs = tuple((dtype, shape) if i == output else held for i, held in enumerate(before.outputs))
    return Draft(draft.inputs, Conversion(before.name, outputs, tuple(sorted(parameters.items()))))


def whole_grains(shape: tuple[int, ...]) -> tuple[Grain, ...]:
    """The grains of a tensor that is not quantised."""
    return tuple(Grain(dim, 1) for dim in range(len(shape)))


def never_divided(shape: tuple[int, ...]) -> tuple[Grain, ...]:
    return tuple(Grain(None, WHOLE) for _ in shape)


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
