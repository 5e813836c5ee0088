"""Conversions that move or rename bytes, or change scales: what needs no decoding to FP32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from day0.errors import InputError
from day0.safetensors_header import DTYPE_BITS, TensorInfo
from tasks.reshard.convert import codes as c
from tasks.reshard.convert import kernels
from tasks.reshard.convert.encoders import FLOATS, Output, Outputs, as_bytes
from tasks.reshard.convert.scratch import scratch


class Exact:
    """A conversion without error statistics."""

    unit: int

    def errors(self) -> None:
        return None


class Transpose(Exact):
    """[.., A, B] to [.., B, A], of elements of 1, 2, 4 or 8 bytes. A block is whole matrices."""

    def __init__(self, tensor: TensorInfo) -> None:
        bits = DTYPE_BITS[tensor.dtype]
        if bits not in (8, 16, 32, 64) or len(tensor.shape) < 2 or 0 in tensor.shape:
            raise InputError(
                f"tensor {tensor.name!r} in {tensor.file}: {tensor.dtype} {list(tensor.shape)} cannot be transposed"
            )
        self.dtype = np.dtype(f"u{bits // 8}")
        *lead, self.a, self.b = tensor.shape
        self.outputs: Outputs = ((tensor.dtype, (*lead, self.b, self.a)),)
        self.unit = self.a * self.b * self.dtype.itemsize

    def convert(self, begin: int, data: memoryview) -> list[Output]:
        source = np.frombuffer(data.toreadonly(), self.dtype).reshape(-1, self.a, self.b)
        out = scratch("output 0", source.size, self.dtype).reshape(-1, self.b, self.a)
        for matrix, target in zip(source, out, strict=True):
            kernels.turn(matrix, target)
        return [(0, begin, as_bytes(out.reshape(-1)))]


class DecodeE8M0(Exact):
    """Scales 2^(code - 127), stored as F8_E8M0 or U8, to F32 or BF16 (both hold each of them). 0xff is NaN: refused."""

    unit = 1

    def __init__(self, tensor: TensorInfo, dtype: str) -> None:
        _expect(tensor, "F8_E8M0", "U8")
        if dtype not in ("F32", "BF16"):
            raise ValueError(f"e8m0 scales become F32 or BF16, not {dtype}")
        self.tensor, self.dtype = tensor, dtype
        self.outputs: Outputs = ((dtype, tensor.shape),)

    def convert(self, begin: int, data: memoryview) -> list[Output]:
        values = c.floats(data, self.tensor.dtype)
        c.check_scales(values, self.tensor, begin, "positive")
        return [_floats_out(begin, values, self.dtype)]


class RenameFp8(Exact):
    """F8_E4M3 to F8_E4M3FNUZ or back, keeping the bytes: the same code means twice as much in F8_E4M3.

    As vLLM's normalize_e4m3fn_to_e4m3fnuz: 0x80, OCP's negative zero, is FNUZ's NaN and becomes 0; the scale doubles
    (ScaleFp8). NaN is refused both ways: 0x7f and 0xff in OCP, 0x80 in FNUZ. On the way back FNUZ's 0x7f and 0xff,
    +-240, have no code in OCP with half the scale, and are refused too.
    """

    unit = 1

    def __init__(self, tensor: TensorInfo, to_fnuz: bool) -> None:
        _expect(tensor, "F8_E4M3" if to_fnuz else "F8_E4M3FNUZ")
        self.tensor, self.to_fnuz = tensor, to_fnuz
        self.outputs: Outputs = (("F8_E4M3FNUZ" if to_fnuz else "F8_E4M3", tensor.shape),)

    def convert(self, begin: int, data: memoryview) -> list[Output]:
        source = np.frombuffer(data, np.uint8)
        out = scratch("output 0", source.size, source.dtype)
        mask = scratch("mask", source.size, np.dtype(np.bool_))
        np.bitwise_and(source, 0x7F, out=out)
        if np.equal(out, 0x7F, out=mask).any():
            what = "is NaN" if self.to_fnuz else "is +-240, for which F8_E4M3 has no code with half the scale"
            raise self._refused(begin, mask, what)
        np.equal(source, 0x80, out=mask)
        if not self.to_fnuz and mask.any():
            raise self._refused(begin, mask, "is NaN")
        np.copyto(out, source)
        np.copyto(out, 0, where=mask)
        return [(0, begin, as_bytes(out))]

    def _refused(self, begin: int, mask: NDArray[np.bool_], what: str) -> InputError:
        at = c.position(begin + int(np.argmax(mask)), self.tensor.shape)
        return InputError(f"tensor {self.tensor.name!r} in {self.tensor.file}: the code at {at} {what}")


class ScaleFp8(Exact):
    """The scales of a renamed FP8 weight: times 2 (to FNUZ) or 1/2, exactly, or refused where a scale cannot be."""

    def __init__(self, tensor: TensorInfo, factor: float) -> None:
        _expect(tensor, "F32", "BF16", "F16", "F8_E8M0", "U8")
        self.tensor, self.factor = tensor, np.float32(factor)
        self.outputs: Outputs = ((tensor.dtype, tensor.shape),)
        self.unit = c.ITEM_BYTES[tensor.dtype]

    def convert(self, begin: int, data: memoryview) -> list[Output]:
        values = c.floats(data, self.tensor.dtype)
        first = begin // self.unit
        c.check_scales(values, self.tensor, first, "positive")
        with np.errstate(over="ignore", under="ignore"):
            scaled = values * self.factor
            _, _, written = output = _floats_out(first, scaled, self.tensor.dtype)
            lost = c.floats(written, self.tensor.dtype).astype(np.float64) != values.astype(np.float64) * self.factor
        if lost.any():
            at = c.position(first + int(np.argmax(lost)), self.tensor.shape)
            raise InputError(
                f"tensor {self.tensor.name!r} in {self.tensor.file}: the scale at {at} times {self.factor} is no"
                f" {self.tensor.dtype}"
            )
        return [output]


class NegativeExp(Exact):
    """-exp(x), to F32: Mamba's state matrix from its logarithm, as engines hold it. At most half a unit off."""

    def __init__(self, tensor: TensorInfo, dtype: str) -> None:
        _expect(tensor, "F32", "BF16", "F16")
        if dtype != "F32":
            raise ValueError(f"-exp(x) is written as F32, not {dtype}")
        self.tensor = tensor
        self.outputs: Outputs = ((dtype, tensor.shape),)
        self.unit = c.ITEM_BYTES[tensor.dtype]

    def convert(self, begin: int, data: memoryview) -> list[Output]:
        values = c.floats(data, self.tensor.dtype)
        first = begin // self.unit
        with np.errstate(over="ignore", under="ignore"):
            results = (-np.exp(values.astype(np.float64))).astype(np.float32)
        if not np.isfinite(results).all():
            at = c.position(first + int(np.argmin(np.isfinite(results))), self.tensor.shape)
            raise InputError(f"tensor {self.tensor.name!r} in {self.tensor.file}: -exp of the value at {at} is no F32")
        return [_floats_out(first, results, "F32")]


def _floats_out(first: int, values: NDArray[np.float32], dtype: str) -> Output:
    """Values that `dtype` can hold exactly (the caller checks, or knows), from element `first`."""
    bits = values.view(np.uint32)
    out: NDArray[Any]
    if dtype == "BF16":
        out = (bits >> np.uint32(16)).astype(np.uint16)
    elif dtype in ("F8_E8M0", "U8"):
        out = np.where(bits == 1 << 22, 0, bits >> np.uint32(23)).astype(np.uint8)
    else:
        out = values.astype(FLOATS[dtype], copy=False)
    return 0, first * out.itemsize, as_bytes(np.ascontiguousarray(out))


def _expect(tensor: TensorInfo, *dtypes: str) -> None:
    if tensor.dtype not in dtypes:
        raise InputError(
            f"tensor {tensor.name!r} in {tensor.file}: {tensor.dtype} where {' or '.join(dtypes)} is expected"
        )
