"""How a checkpoint's weights are stored: each with what stands beside it, and what computes it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from day0.architecture.bound import Match
from day0.artifacts.shards import Dropped
from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.units import FLOATS
from tasks.reshard.writes import Conversion

_FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


@dataclass
class Weight:
    """A weight with what stands beside it."""

    main: Match
    beside: list[Match]

    def of_role(self, *roles: str) -> list[Match]:
        return [match for match in self.beside if match.companion and match.companion.role in roles]

    @property
    def scale(self) -> Match | None:
        scales = self.of_role("scale")
        return scales[0] if scales else None

    @property
    def name(self) -> str:
        rule = self.main.rule
        named = {s: n for s, n in zip(rule.slots, self.main.numbers, strict=True) if isinstance(s, str)}
        return rule.named(named)

    @property
    def plain(self) -> bool:
        return self.main.companion is None and self.main.tensor.dtype in FLOATS

    @property
    def quantised(self) -> bool:
        """Whether it is to be computed out: of what is no float, a router's table of ids is what it says."""
        return not self.plain and (
            self.scale is not None or self.main.rule.rule.kind not in ("router", "buffer", "residual")
        )


def weights_of(matches: Sequence[Match]) -> list[Weight]:
    """Every weight with what stands beside it.

    Raises:
        InputError: something stands beside a weight that is not there; names it.
    """
    grouped: dict[tuple[int, tuple[int, ...]], Weight] = {}
    beside: list[tuple[tuple[int, tuple[int, ...]], Match]] = []
    for match in matches:
        key = (id(match.rule), match.numbers)
        if match.companion is None or match.companion.role == "packed":
            grouped[key] = Weight(match, [])
        else:
            beside.append((key, match))
    for key, match in beside:
        if key not in grouped:
            raise InputError(f"tensor {match.tensor.name!r} stands beside a weight that the checkpoint lacks")
        grouped[key].beside.append(match)
    return list(grouped.values())


def own_dtype(weights: Iterable[Weight]) -> str | None:
    """The dtype that the checkpoint's unquantised weights have: its embedding's, or else the most frequent one."""
    counts: dict[str, int] = {}
    for weight in weights:
        if weight.plain:
            if weight.main.rule.rule.kind == "embedding":
                return weight.main.tensor.dtype
            counts[weight.main.tensor.dtype] = counts.get(weight.main.tensor.dtype, 0) + 1
    return max(counts, key=lambda dtype: counts[dtype]) if counts else None


@dataclass(frozen=True)
class Dequantisation:
    """What computes a quantised weight out."""

    conversion: Conversion
    """Its outputs are left to whoever asks."""
    inputs: tuple[TensorInfo, ...]
    dropped: list[Dropped]
    """What stands beside the weight and is not needed."""


def dequantisation(weight: Weight, config: Mapping[str, Any]) -> Dequantisation:
    """What computes a quantised weight out, by how it is stored.

    Raises:
        InputError: what is stored does not tell the values, or no conversion reads it; names the tensor.
    """
    main, scale = weight.main.tensor, weight.scale
    if scale is None:
        raise InputError(f"tensor {main.name!r} is {main.dtype} without a scale beside it, so its values are not known")
    name = _form(weight)
    taken = [("scale", scale), *_further_inputs(name, weight)]
    needed = {id(match) for _, match in taken}
    reason = "belongs to the quantised form, which is computed out"
    dropped = [Dropped(tensor=m.tensor.name, reason=reason) for m in weight.beside if id(m) not in needed]
    parameters: dict[str, Any] = {"roles": tuple(role for role, _ in taken)}
    if name in ("fp8_block_dequant", "int8_dequant") and (block := _block(scale, len(weight.main.rule.shape))):
        parameters["block"] = block
    quantization = config.get("quantization_config")
    if name == "gptq_dequant" and isinstance(quantization, Mapping):
        # Version 2 of the format stores zero points as they are, the first one less than they are.
        parameters["zero_offset"] = 0 if quantization.get("checkpoint_format") == "gptq_v2" else 1
    conversion = Conversion(name, (), tuple(sorted(parameters.items())))
    return Dequantisation(conversion, (main, *(match.tensor for _, match in taken)), dropped)


def _further_inputs(name: str, weight: Weight) -> list[tuple[str, Match]]:
    """What a conversion takes beside the weight and its scale, each with its part in it."""
    if name == "nvfp4_dequant":
        scales = [m for m in weight.of_role("whole") if m.tensor.name.endswith(("_scale_2", "global_scale"))]
        if not scales:
            raise InputError(f"tensor {weight.main.tensor.name!r} is NVFP4, but the scale of its scales is not there")
        return [("scale_2", scales[0])]
    if name in ("int4_dequant", "gptq_dequant", "awq_dequant"):
        shapes = [m for m in weight.of_role("whole") if m.tensor.name.endswith("_shape")]
        return [
            *(("zero_point", m) for m in weight.of_role("offset")[:1]),
            *(("shape", m) for m in shapes),
            *(("g_idx", m) for m in weight.of_role("order")),
        ]
    if name == "int8_dequant" and (offsets := weight.of_role("offset")):
        raise InputError(
            f"tensor {offsets[0].tensor.name!r}: int8 weights with an offset are not converted; "
            "write them as they are stored"
        )
    if name == "int8_dequant" and weight.scale and weight.scale.tensor.name.endswith(".deq_scale"):
        raise InputError(
            f"tensor {weight.scale.tensor.name!r}: the scale of the weight times that of its input, and such int8 "
            "weights are not converted; write them as they are stored"
        )
    return []


def _form(weight: Weight) -> str:
    """The conversion that reads how a weight is stored."""
    main, scale = weight.main, weight.scale
    packed = any(grain.size > 1 for grain in main.grains) or len(main.tensor.shape) > len(main.rule.shape)
    if main.companion and main.companion.transposed:
        return "gptq_dequant" if main.tensor.shape[-1] == main.rule.shape[-2] else "awq_dequant"
    if main.tensor.dtype in _FP8:
        return "fp8_block_dequant"
    if main.tensor.dtype == "I32" and packed:
        return "int4_dequant"
    if main.tensor.dtype in ("U8", "I8") and packed:
        return "nvfp4_dequant" if scale and scale.tensor.dtype == "F8_E4M3" else "mxfp4_dequant"
    if main.tensor.dtype == "I8":
        return "int8_dequant"
    raise InputError(
        f"tensor {main.tensor.name!r} is stored as {main.tensor.dtype} {list(main.tensor.shape)}, "
        "which no conversion reads"
    )


def _block(scale: Match, dimensions: int) -> tuple[int, int] | None:
    """The block of a weight's last two dimensions that a scale covers, 0 for all of one; None for scales of fewer
    dimensions, whose shape tells."""
    if len(scale.grains) != dimensions or dimensions < 2:
        return None
    return scale.grains[-2].size, scale.grains[-1].size
