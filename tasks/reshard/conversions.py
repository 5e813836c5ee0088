"""Which conversion each weight needs, by how it is stored and what is asked for.

A weight is converted whole and then divided, so that a scale made here is the whole model's: a row-parallel rank's own
slice of a row would give another. What is computed out of a quantised form leaves its scales behind; every tensor that
is not an input of anything is listed as dropped, with the reason.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from day0.architecture.bound import BoundFamily, Match
from day0.architecture.cuts import Cutter
from day0.architecture.dtypes import SAFETENSORS
from day0.architecture.grains import WHOLE, Grain
from day0.architecture.quantised import Companion, companions
from day0.architecture.weight_dtypes import WeightDtype, weight_dtype_of
from day0.artifacts.shards import Dropped
from day0.errors import InputError
from tasks.reshard.stored_weights import Weight, dequantisation, own_dtype, weights_of
from tasks.reshard.units import FLOATS, TRANSPOSED, Draft, Unit, as_stored, exchanged, is_mtp, whole_grains
from tasks.reshard.writes import Conversion


@dataclass
class Chosen:
    """Every unit, and what the config must say for them."""

    units: list[Unit]
    dropped: list[Dropped] = field(default_factory=list)
    config_changes: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Job:
    """What is asked for, and where the units are put."""

    wanted: WeightDtype
    own: str | None
    """The dtype of the checkpoint's unquantised weights."""
    bound: BoundFamily
    layout: str
    cutter: Cutter
    chosen: Chosen

    def float_of(self, match: Match) -> str | None:
        """The dtype that the layout's engine computes such a weight in, where it never holds it quantised."""
        target = match.rule.targets.get(self.layout)
        held = target.dtype if target else None
        return held if held in FLOATS and not is_mtp(match, self.bound) else None

    def to_float(self, dtype: str) -> _Job:
        """The same for weights that are to be plain."""
        return replace(self, wanted=weight_dtype_of(SAFETENSORS[dtype])[1], own=None)


def choose_conversions(
    matches: Sequence[Match], bound: BoundFamily, weight_dtype: str | None, cutter: Cutter, layout: str = "hf"
) -> Chosen:
    """The units of a checkpoint, converted to `weight_dtype` where one is asked for and they are stored otherwise.

    Without one, only what is quantised in the checkpoint and never in the layout's engine is computed out.

    Raises:
        InputError: no such dtype, or a weight is stored in a way that cannot be converted to it; names the tensor.
    """
    if weight_dtype is None:
        return _as_stored(matches, bound, layout, cutter)
    name, wanted = weight_dtype_of(weight_dtype)
    weights = weights_of(matches)
    chosen = Chosen([])
    job = _Job(wanted, own_dtype(weights), bound, layout, cutter, chosen)
    write = {"float": _to_float, "quantised": _quantised, "renamed": _renamed}[wanted.kind]
    for weight in weights:
        write(weight, job)
    if any(unit.draft.conversion for unit in chosen.units):
        chosen.config_changes = _config_changes(name, wanted, bound.config, chosen.units)
    return chosen


def _as_stored(matches: Sequence[Match], bound: BoundFamily, layout: str, cutter: Cutter) -> Chosen:
    quantised = {match.rule for match in matches if match.companion is not None}
    chosen = Chosen([])
    job = _Job(weight_dtype_of("bfloat16")[1], None, bound, layout, cutter, chosen)
    computed: list[Match] = []
    for match in matches:
        if match.rule in quantised and job.float_of(match):
            computed.append(match)
        else:
            chosen.units.append(as_stored(match, cutter))
    for weight in weights_of(computed):
        _to_float(weight, job.to_float(job.float_of(weight.main) or ""))
    return chosen


def _to_float(weight: Weight, job: _Job) -> None:
    tensor = weight.main.tensor
    if weight.quantised:
        job.chosen.units.append(_dequantised(weight, job))
        return
    # A dtype beside the checkpoint's own was chosen for its range (router biases, decays): it is kept.
    if weight.plain and tensor.dtype == job.own and tensor.dtype != job.wanted.stored:
        draft = Draft((tensor,), Conversion("cast", ((job.wanted.stored, tensor.shape),)))
        kind = job.cutter.kind(weight.main.rule, tensor.shape, job.wanted.stored, weight.main.grains)
        job.chosen.units.append(Unit(tensor.name, weight.main, kind, draft))
    else:
        _keep(weight, job)


def _dequantised(weight: Weight, job: _Job) -> Unit:
    before = dequantisation(weight, job.bound.config)
    job.chosen.dropped += before.dropped
    rule = weight.main.rule
    name, shape, grains = before.conversion.name, rule.shape, whole_grains(rule.shape)
    if rule.rule.plain_transposed:
        name, shape, grains = f"{name}{TRANSPOSED}", exchanged(shape), exchanged(grains)
    conversion = Conversion(name, ((job.wanted.stored, shape),), before.conversion.parameters)
    match = weight.main._replace(companion=None, grains=grains)
    kind = job.cutter.kind(rule, shape, job.wanted.stored, grains)
    return Unit(weight.name, match, kind, Draft(before.inputs, conversion))


def _quantised(weight: Weight, job: _Job) -> None:
    rule = weight.main.rule
    assert job.wanted.scale
    matrix = len(rule.shape) == 2 or (len(rule.shape) == 3 and rule.rule.experts is not None)
    # Less than a block gains nothing, and could not be divided (a gate of one row a head).
    matrix = matrix and all(n >= size for n, size in zip(rule.shape[-2:], job.wanted.scale.block, strict=True))
    held = job.float_of(weight.main)
    if held is None and _is_already(weight, job.wanted):
        _keep(weight, job)
        return
    if held or rule.rule.kind not in job.wanted.of or not matrix:
        # Plain: the config will say of one form that it is the checkpoint's, and of the rest that it is not quantised.
        _to_float(weight, job.to_float(held or job.own or "BF16"))
        return
    assert job.wanted.conversion
    scale_shape = _scale_shape(rule.shape, job.wanted.scale.block)
    outputs = ((job.wanted.stored, rule.shape), (job.wanted.scale.dtype, scale_shape))
    if weight.plain:
        draft = Draft((weight.main.tensor,), Conversion(job.wanted.conversion, outputs))
    else:
        before = dequantisation(weight, job.bound.config)
        job.chosen.dropped += before.dropped
        name = f"{before.conversion.name}+{job.wanted.conversion}"
        draft = Draft(before.inputs, Conversion(name, outputs, before.conversion.parameters))
    companion = _companion(weight.name, job.wanted.scale.ending)
    grains = whole_grains(rule.shape)
    match = weight.main._replace(companion=None, grains=grains)
    job.chosen.units.append(
        Unit(weight.name, match, job.cutter.kind(rule, rule.shape, job.wanted.stored, grains), draft)
    )
    scale_grains = (*whole_grains(rule.shape[:-2]), *_block_grains(job.wanted.scale.block, len(rule.shape) - 2))
    beside = weight.main._replace(companion=companion, grains=scale_grains)
    name = weight.name.removesuffix(_base(companion, weight.name)) + companion.ending
    kind = job.cutter.kind(rule, scale_shape, job.wanted.scale.dtype, scale_grains)
    job.chosen.units.append(Unit(name, beside, kind, draft, output=1))


def _renamed(weight: Weight, job: _Job) -> None:
    assert job.wanted.conversion
    assert job.wanted.scales
    if weight.main.tensor.dtype != job.wanted.source:
        _keep(weight, job)
        return
    if weight.scale is None:
        raise InputError(
            f"tensor {weight.name!r} is {job.wanted.source} without a scale, which would have to change with it"
        )
    for match in (weight.main, *weight.beside):
        tensor = match.tensor
        if match is weight.main:
            conversion = Conversion(job.wanted.conversion, ((job.wanted.stored, tensor.shape),))
        elif match is weight.scale:
            conversion = Conversion(job.wanted.scales, ((tensor.dtype, tensor.shape),))
        else:
            job.chosen.units.append(as_stored(match, job.cutter))
            continue
        kind = job.cutter.kind(match.rule, tensor.shape, conversion.outputs[0][0], match.grains)
        job.chosen.units.append(Unit(tensor.name, match, kind, Draft((tensor,), conversion)))


def _keep(weight: Weight, job: _Job) -> None:
    cutter = job.cutter
    job.chosen.units += [as_stored(match, cutter) for match in (weight.main, *weight.beside)]


def _is_already(weight: Weight, wanted: WeightDtype) -> bool:
    """Whether a weight is stored as it is wanted: the same dtype, and scales of the same blocks and no offsets."""
    assert wanted.scale
    if weight.main.tensor.dtype != wanted.stored or weight.scale is None or weight.of_role("offset"):
        return False
    return weight.scale.tensor.shape == _scale_shape(weight.main.rule.shape, wanted.scale.block)


def _scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    blocks = (1 if size == 0 else -(-n // size) for n, size in zip(shape[-2:], block, strict=True))
    return (*shape[:-2], *blocks)


def _block_grains(block: tuple[int, int], outer: int) -> tuple[Grain, ...]:
    return tuple(Grain(None, WHOLE) if size == 0 else Grain(outer + i, size) for i, size in enumerate(block))


def _companion(name: str, ending: str) -> Companion:
    """How a scale's name is made of its weight's: `.weight` gives way, what has no such end gets one more."""
    wanted = f".{ending}" if name.endswith(".weight") else f"_{ending.removeprefix('weight_')}"
    both = [c for c in companions() if c.ending == wanted] or [c for c in companions() if c.ending == f"_{ending}"]
    return both[0]


def _base(companion: Companion, name: str) -> str:
    return next(base for base in companion.of if name.endswith(base))


def _config_changes(name: str, wanted: WeightDtype, config: Mapping[str, Any], units: Sequence[Unit]) -> dict[str, Any]:
    """What config.json must say of the files: their dtype, and how they are quantised."""
    changes: dict[str, Any] = {}
    places = ["", *(f"{key}." for key, value in config.items() if key.endswith("_config") and isinstance(value, dict))]
    for place in places:
        held = config.get(place.removesuffix("."), {}) if place else config
        for key in ("quantization_config", "compression_config"):
            if isinstance(held, Mapping) and held.get(key) is not None and wanted.kind != "renamed":
                changes[f"{place}{key}"] = None
            elif isinstance(held, Mapping) and isinstance(held.get(key), Mapping):
                changes[f"{place}{key}.fmt"] = wanted.format
        for key in ("dtype", "torch_dtype"):
            if wanted.kind == "float" and isinstance(held, Mapping) and held.get(key) is not None:
                changes[f"{place}{key}"] = name
    if wanted.kind == "quantised":
        assert wanted.quantization
        assert wanted.ignore
        changes["quantization_config"] = {
            **copy.deepcopy(wanted.quantization),
            wanted.ignore: sorted(_left(units)),
        }
    return changes


def _left(units: Sequence[Unit]) -> Iterator[str]:
    """Names of the linear layers that were not quantised."""
    for unit in units:
        rule = unit.match.rule.rule
        if unit.companion is None and len(rule.shape) == 2 and rule.kind != "embedding" and unit.kind.dtype in FLOATS:
            yield unit.name.removesuffix(".weight")
