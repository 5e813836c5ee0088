"""Which decoder a conversion's first input needs, and what its other inputs are to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from day0.safetensors_header import TensorInfo
from tasks.reshard.convert import decoders, scales
from tasks.reshard.convert.decoders import Decoder
from tasks.reshard.convert.scales import Read, unfit
from tasks.reshard.writes import Conversion

Inputs = dict[str, tuple[int, TensorInfo]]
MakeDecoder = Callable[[Conversion, Inputs, TensorInfo, Read, bool], Decoder]


def decoder_of(name: str, conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read, by_rows: bool) -> Decoder:
    """The decoder named `name`; `by_rows` is False where elements are taken one by one.

    Raises:
        InputError: the tensors do not fit it, or each other.
        ValueError: the plan's roles are not those of the conversion.
    """
    return _DECODERS[name](conversion, _roles(conversion, name, inputs), inputs[0], read, by_rows)


def _floats(conversion: Conversion, others: Inputs, tensor: TensorInfo, read: Read, by_rows: bool) -> Decoder:
    if by_rows and (len(tensor.shape) < 2 or 0 in tensor.shape):
        raise unfit(tensor, f"its shape {list(tensor.shape)} is not that of matrices")
    return decoders.Floats(tensor, by_rows)


def _bytes(*dtypes: str) -> MakeDecoder:
    def make(conversion: Conversion, others: Inputs, tensor: TensorInfo, read: Read, by_rows: bool) -> Decoder:
        def grid(shape: tuple[int, ...]) -> scales.ScaleGrid:
            block, segments = conversion.parameter("block"), conversion.parameter("segments")
            return scales.ScaleGrid(
                *_scale(others, read),
                tensor,
                shape,
                tuple(block) if block else None,
                format=_format(conversion),
                segments=tuple(segments) if segments else None,
            )

        return decoders.Bytes(tensor, grid, dtypes)

    return make


def _mxfp4(conversion: Conversion, others: Inputs, tensor: TensorInfo, read: Read, by_rows: bool) -> Decoder:
    group = conversion.parameter("group_size", 32)
    _packed(tensor, ("U8", "I8"))
    scale = others["scale"][1]
    shape = tensor.shape
    if len(shape) == len(scale.shape) + 1 and shape[-1] * 2 == group:  # gpt-oss: a dimension for the groups
        shape = (*shape[:-2], shape[-2] * shape[-1])
    shape = (*shape[:-1], shape[-1] * 2)
    if shape[-1] % group:
        raise unfit(tensor, f"rows of {shape[-1]} codes are not whole groups of {group}")
    grid = scales.ScaleGrid(*_scale(others, read), tensor, shape, (1, group), format="e8m0")
    return decoders.FP4(tensor, shape, grid)


def _nvfp4(conversion: Conversion, others: Inputs, tensor: TensorInfo, read: Read, by_rows: bool) -> Decoder:
    group = conversion.parameter("group_size", 16)
    _packed(tensor, ("U8",))
    shape = (*tensor.shape[:-1], tensor.shape[-1] * 2)
    if others["scale"][1].dtype != "F8_E4M3":
        raise unfit(others["scale"][1], f"{others['scale'][1].dtype} where F8_E4M3 is expected")
    if shape[-1] % group:
        raise unfit(tensor, f"rows of {shape[-1]} codes are not whole groups of {group}")
    grid = scales.ScaleGrid(*_scale(others, read), tensor, shape, (1, group), allow="zero")
    number, second = others["scale_2"]
    # compressed-tensors' weight_global_scale is the reciprocal of modelopt's weight_scale_2
    by_name = "divide" if second.name.endswith("global_scale") else "multiply"
    divide = {"multiply": False, "divide": True}[conversion.parameter("global_scale", by_name)]
    combine = scales.scale_factor(second, number, read, shape, divide)
    return decoders.FP4(tensor, shape, grid, combine)


def _int4(conversion: Conversion, others: Inputs, tensor: TensorInfo, read: Read, by_rows: bool) -> Decoder:
    _packed(tensor, ("I32",))
    transposed = conversion.name.endswith("+transpose")
    shape = conversion.outputs[0][1]  # the packed one is padded to whole words
    shape = (*shape[:-2], shape[-1], shape[-2]) if transposed else shape
    said = conversion.parameter("bits")
    fitting = [bits for bits in (4, 8) if tensor.shape == (*shape[:-1], -(-shape[-1] * bits // 32))]
    if said not in (None, *fitting) or not fitting:
        what = "packed in 4 or 8 bits" if said is None else f"packed in {said} bits (4 and 8 are supported)"
        raise unfit(tensor, f"stored as {list(tensor.shape)}, it cannot be a weight of {list(shape)} {what}")
    bits = said or fitting[0]
    scale = others["scale"][1]
    group = conversion.parameter("group_size") or _group(shape[-1], scale, len(shape))
    if group < 0 or scale.shape[-1:] == (1,):
        group = shape[-1]
    grid = scales.ScaleGrid(*_scale(others, read), tensor, shape, (1, group), allow="any")
    if "g_idx" in others:
        number, order = others["g_idx"]
        scales.check_order(order, number, read, shape[-1], group)
    if "shape" in others:
        number, stored = others["shape"]
        scales.check_weight_shape(stored, number, read, shape)
    zeros = None
    if "zero_point" in others:
        number, points = others["zero_point"]
        zeros = scales.packed_zero_points(points, number, read, shape, grid.columns, bits)
    return decoders.PackedRows(tensor, shape, bits, grid, zeros)


def _columns(awq: bool) -> MakeDecoder:
    def make(conversion: Conversion, others: Inputs, tensor: TensorInfo, read: Read, by_rows: bool) -> Decoder:
        zero_offset = 0 if awq else conversion.parameter("zero_offset", 1)
        group = conversion.parameter("group_size")
        decoder = decoders.PackedColumns(tensor, others, read, awq=awq, zero_offset=zero_offset, group_size=group)
        k, n = decoder.shape
        if (n, k) != conversion.outputs[0][1]:
            planned = list(conversion.outputs[0][1])
            raise unfit(tensor, f"with 4 bits (others are not supported) it is a weight of {[n, k]}, not of {planned}")
        return decoder

    return make


#: name -> how its decoder is made, and the roles of its other inputs: those that it must have, those that it may have.
_DECODERS: Mapping[str, MakeDecoder] = {
    "cast": _floats,
    "fp8_block_dequant": _bytes("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"),
    "int8_dequant": _bytes("I8"),
    "mxfp4_dequant": _mxfp4,
    "nvfp4_dequant": _nvfp4,
    "int4_dequant": _int4,
    "gptq_dequant": _columns(awq=False),
    "awq_dequant": _columns(awq=True),
}
_ROLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cast": ((), ()),
    "fp8_block_dequant": (("scale",), ()),
    "int8_dequant": (("scale",), ()),
    "mxfp4_dequant": (("scale",), ()),
    "nvfp4_dequant": (("scale", "scale_2"), ()),
    "int4_dequant": (("scale",), ("zero_point", "shape", "g_idx")),
    "gptq_dequant": (("scale",), ("zero_point", "g_idx")),
    "awq_dequant": (("scale",), ("zero_point",)),
}


def _roles(conversion: Conversion, decoder: str, inputs: tuple[TensorInfo, ...]) -> Inputs:
    """The inputs after the first by what they are.

    Raises:
        InputError: one that is needed is not there.
        ValueError: the plan's roles are not those of the conversion.
    """
    needed, optional = _ROLES[decoder]
    others = inputs[1:]
    roles = conversion.parameter("roles") or (*needed, *optional)[: len(others)]
    if len(roles) != len(others) or len(set(roles)) != len(roles) or not set(roles) <= {*needed, *optional}:
        raise ValueError(f"{conversion.name}: {len(others)} further inputs cannot be {', '.join(roles)}")
    if missing := [role for role in needed if role not in roles]:
        raise unfit(inputs[0], f"{conversion.name} needs its {' and '.join(missing)}, which the checkpoint lacks")
    return {role: (number, info) for number, (role, info) in enumerate(zip(roles, others, strict=True), 1)}


def _scale(others: Inputs, read: Read) -> tuple[TensorInfo, int, Read]:
    number, info = others["scale"]
    return info, number, read


def _format(conversion: Conversion) -> str | None:
    value = conversion.parameter("scale_format")
    return None if value is None else "e8m0" if value in ("e8m0", "ue8m0") else "float"


def _group(k: int, scale: TensorInfo, dimensions: int) -> int:
    """Elements of a row that share a scale, from the scales' shape."""
    groups = scale.shape[-1] if len(scale.shape) == dimensions else 1
    if groups == 0 or k % groups:
        raise unfit(scale, f"{groups} groups do not divide rows of {k}: say group_size")
    return k // groups


def _packed(tensor: TensorInfo, dtypes: tuple[str, ...]) -> None:
    if tensor.dtype not in dtypes or len(tensor.shape) < 2 or 0 in tensor.shape:
        expected = " or ".join(dtypes)
        raise unfit(tensor, f"{tensor.dtype} {list(tensor.shape)} where packed {expected} matrices are expected")
