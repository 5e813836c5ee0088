"""The conversions by name, and how one is made.

    name              first input                       other inputs (`roles`)        comes out
    fp8_block_dequant FP8 [.., N, K]                    scale                         BF16, F16 or F32
    int8_dequant      I8 [.., N, K]                     scale                         the same
    mxfp4_dequant     U8 or I8 pairs [.., N, K/2], or   scale                         the same
                      [.., N, K/32, 16] (gpt-oss)
    nvfp4_dequant     U8 pairs [.., N, K/2]             scale, scale_2                the same
    int4_dequant      I32 [.., N, ceil(K x bits / 32)]  scale, [zero_point], [shape], the same
                                                        [g_idx]
    gptq_dequant      I32 [K/8, N]                      scale, [zero_point], [g_idx]  the same, [N, K]
    awq_dequant       I32 [K, N/8]                      scale, [zero_point]           the same, [N, K]
    cast              BF16, F16 or F32                                                the same
    int8_quant        BF16, F16 or F32 [.., N, K]                                     I8, scale [.., N, 1]
    fp8_block_quant   the same                                                        F8_E4M3, scale per block
    transpose         any [.., A, B]                                                  [.., B, A]
    e8m0_decode       F8_E8M0 or U8                                                   F32 or BF16
    fp8_fn_to_fnuz, fp8_fnuz_to_fn, and for the scales beside them fp8_scale_fn_to_fnuz, fp8_scale_fnuz_to_fn

Chains, in one step and without rounding in between: X_dequant+int8_quant, X_dequant+fp8_block_quant,
X_dequant+transpose (the last two dimensions of what X_dequant alone would write), for all X but gptq and awq; and
cast+transpose.

Parameters, all optional unless said otherwise:
    roles          what the inputs after the first are, in order; by default the first ones of the table that fit
    block          fp8, int8: (rows, columns) that share a scale, 0 for all of a dimension; by default from the scales'
                   shape, where that tells: one per row, one per matrix, one for all
    segments       fp8, int8: rows of fused parts that were quantised by themselves
    group_size     mxfp4 (32), nvfp4 (16), int4, gptq, awq: elements that share a scale; by default from the shapes
    scale_format   "e8m0" or "float": checked against the scales' dtype (U8 and F8_E8M0 are e8m0)
    global_scale   nvfp4: "multiply" (modelopt's weight_scale_2) or "divide" (compressed-tensors' weight_global_scale);
                   by default from the name of the tensor
    bits           int4: 4 or 8; by default from the shapes
    zero_offset    gptq: 1 (default), or 0 for checkpoint_format gptq_v2
    quant_block    fp8_block_quant: (128, 128)
    quant_scale    fp8_block_quant: "ue8m0" for powers of two; implied where the scales are stored as F8_E8M0 or U8
    nan, overflow  "refuse" (default) or "keep": codes that are NaN; finite values that the target cannot hold

Scales that are NaN, infinite, zero or negative are refused; int4, GPTQ and AWQ may have negative ones (some quantisers
write them), and NVFP4's group scales may be zero (they underflow).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from day0.safetensors_header import TensorInfo
from tasks.reshard.writes import Conversion

if TYPE_CHECKING:
    from tasks.reshard.convert.decoders import Decoder
    from tasks.reshard.convert.encoders import Encoder

Read = Callable[[int, int, int], memoryview]
"""read(i, begin, end): bytes [begin, end) of inputs[i], i >= 1."""


class Converter(Protocol):
    unit: int
    """Bytes of inputs[0] that a block must start at a multiple of and be a multiple of; the last may be shorter."""

    def convert(self, begin: int, data: memoryview) -> list[tuple[int, int, memoryview]]:
        """A block of inputs[0], from byte `begin` of the tensor -> (output, byte offset in it, bytes).

        Blocks may come in any order, from any thread. The bytes are the calling thread's memory, which its next call of
        any conversion uses again: write them first.

        Raises:
            InputError: a code or scale that means nothing; names tensor and position.
        """

    def errors(self) -> dict[str, float] | None:
        """After the last block: max_abs, rms and rms_relative of quantisation; None where there is no such error."""


Factory = Callable[[Conversion, tuple[TensorInfo, ...], Read], Converter]


def make_converter(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
    """What carries out a conversion.

    Raises:
        InputError: the tensors do not fit it, or each other.
        ValueError: no such conversion, or not what the plan says comes out.
    """
    if conversion.name not in CONVERSIONS:
        raise ValueError(f"no conversion {conversion.name!r}; there are {', '.join(sorted(CONVERSIONS))}")
    return CONVERSIONS[conversion.name](conversion, inputs, read)


def describe(conversion: Conversion) -> str:
    """For people and ranks.json: "fp8_block_dequant 128x128 -> BF16"."""
    parameters = dict(conversion.parameters)
    details = []
    for name, prefix in (
        ("block", ""),
        ("group_size", "groups of "),
        ("bits", "bits "),
        ("quant_block", "to blocks of "),
    ):
        if (value := parameters.get(name)) is not None:
            text = "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            details.append(prefix + text)
    head = " ".join([conversion.name, ", ".join(details)]).strip()
    return f"{head} -> {', '.join(dtype for dtype, _ in conversion.outputs)}"


def _pipeline(decoder_name: str, encoder_name: str) -> Factory:
    def make(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
        from tasks.reshard.convert.pipeline import Pipeline  # this and the next import numba
        from tasks.reshard.convert.stored import decoder_of

        by_rows = encoder_name != "cast"
        decoder = decoder_of(decoder_name, conversion, inputs, read, by_rows)
        encoder = _encoder(encoder_name, conversion, decoder)
        _check_outputs(conversion, encoder.outputs)
        return Pipeline(decoder, encoder, by_rows)

    return make


def _encoder(name: str, conversion: Conversion, decoder: Decoder) -> Encoder:
    from tasks.reshard.convert import encoders, quantisers

    parameter, tensor, shape = conversion.parameter, decoder.tensor, decoder.shape
    dtypes = [dtype for dtype, _ in conversion.outputs]
    if len(dtypes) != (2 if name in ("int8_quant", "fp8_block_quant") else 1):
        raise ValueError(f"{conversion.name} has {len(dtypes)} outputs in the plan")
    if name == "int8_quant":
        return quantisers.ToInt8(tensor, shape, dtypes[1])
    if name == "fp8_block_quant":
        rows, columns = parameter("quant_block", (128, 128))
        return quantisers.ToFp8Blocks(tensor, shape, dtypes[1], (rows, columns), parameter("quant_scale") == "ue8m0")
    if dtypes[0] not in encoders.FLOATS:
        raise ValueError(f"{conversion.name} cannot write {dtypes[0]}")
    keep = frozenset(what for what in ("nan", "overflow") if parameter(what, "refuse") == "keep")
    plain = encoders.ToFloats(tensor, dtypes[0], shape, decoder.exact, keep)
    return encoders.Transposed(plain) if name == "transpose" else plain


def _transpose(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
    from tasks.reshard.convert import bytewise

    return _checked(conversion, bytewise.Transpose(inputs[0]))


def _e8m0(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
    from tasks.reshard.convert import bytewise

    return _checked(conversion, bytewise.DecodeE8M0(inputs[0], conversion.outputs[0][0]))


def _negative_exp(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
    from tasks.reshard.convert import bytewise

    return _checked(conversion, bytewise.NegativeExp(inputs[0], conversion.outputs[0][0]))


def _rename(to_fnuz: bool) -> Factory:
    def make(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
        from tasks.reshard.convert import bytewise

        return _checked(conversion, bytewise.RenameFp8(inputs[0], to_fnuz))

    return make


def _rescale(factor: float) -> Factory:
    def make(conversion: Conversion, inputs: tuple[TensorInfo, ...], read: Read) -> Converter:
        from tasks.reshard.convert import bytewise

        return _checked(conversion, bytewise.ScaleFp8(inputs[0], factor))

    return make


def _conversions() -> dict[str, Factory]:
    table: dict[str, Factory] = {
        "transpose": _transpose,
        "e8m0_decode": _e8m0,
        "negative_exp": _negative_exp,
        "fp8_fn_to_fnuz": _rename(True),
        "fp8_fnuz_to_fn": _rename(False),
        "fp8_scale_fn_to_fnuz": _rescale(2.0),
        "fp8_scale_fnuz_to_fn": _rescale(0.5),
        "int8_quant": _pipeline("cast", "int8_quant"),
        "fp8_block_quant": _pipeline("cast", "fp8_block_quant"),
        "gptq_dequant": _pipeline("gptq_dequant", "transpose"),
        "awq_dequant": _pipeline("awq_dequant", "transpose"),
        "cast": _pipeline("cast", "cast"),
        "cast+transpose": _pipeline("cast", "transpose"),
    }
    for name in ("fp8_block_dequant", "int8_dequant", "mxfp4_dequant", "nvfp4_dequant", "int4_dequant"):
        table[name] = _pipeline(name, "floats")
        for second in ("int8_quant", "fp8_block_quant", "transpose"):
            table[f"{name}+{second}"] = _pipeline(name, second)
    return table


CONVERSIONS: Mapping[str, Factory] = MappingProxyType(_conversions())


class _Bytewise(Converter, Protocol):
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


def _checked(conversion: Conversion, converter: _Bytewise) -> Converter:
    _check_outputs(conversion, converter.outputs)
    return converter


def _check_outputs(conversion: Conversion, outputs: tuple[tuple[str, tuple[int, ...]], ...]) -> None:
    def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:  # scales per row are [N, 1] or [N]
        return shape[:-1] if shape[-1:] == (1,) else shape

    planned = [(dtype, trimmed(tuple(shape))) for dtype, shape in conversion.outputs]
    if planned != [(dtype, trimmed(shape)) for dtype, shape in outputs]:
        raise ValueError(f"{conversion.name} writes {outputs}, but the plan says {conversion.outputs}")


def parameters(**values: Any) -> tuple[tuple[str, Any], ...]:
    """As Conversion.parameters wants them: sorted, without those that are None."""
    return tuple(sorted((name, value) for name, value in values.items() if value is not None))
