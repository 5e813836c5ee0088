"""What the codes of small number formats mean, and scales: stored bytes to FP32. No compiled code is needed for it.

OCP 8-bit floating point (OFP8 1.0): F8_E4M3 has bias 7, no infinity, NaN at 0x7f and 0xff; F8_E5M2 has bias 15 and is
IEEE-like. The FNUZ variants (Graphcore/AMD) have one more in the bias, one zero, and NaN at 0x80 only. OCP
Microscaling (MX 1.0): F8_E8M0 is 2^(code - 127), NaN at 0xff; FP4 E2M1 has bias 1 and no special values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from day0.errors import InputError
from day0.safetensors_header import TensorInfo

F32 = NDArray[np.float32]


def small_floats(exponent_bits: int, mantissa_bits: int, bias: int) -> NDArray[np.float64]:
    """The values of all codes (sign, exponent, mantissa), as if none of them were special."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    magnitude = np.where(exponent == 0, np.ldexp(mantissa, 1 - bias), np.ldexp(1 + mantissa, exponent - bias))
    return np.where(codes >> (exponent_bits + mantissa_bits), -magnitude, magnitude)


def _e4m3() -> F32:
    values = small_floats(4, 3, 7)
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


def _e5m2() -> F32:
    values = small_floats(5, 2, 15)
    for sign in (0, 0x80):
        values[sign | 0x7C] = -np.inf if sign else np.inf
        values[[sign | code for code in (0x7D, 0x7E, 0x7F)]] = np.nan
    return values.astype(np.float32)


def _fnuz(exponent_bits: int, mantissa_bits: int, bias: int) -> F32:
    values = small_floats(exponent_bits, mantissa_bits, bias)
    values[0x80] = np.nan
    return values.astype(np.float32)


#: dtype as in a safetensors header -> the value of each of its 256 codes.
BYTE_VALUES: dict[str, F32] = {
    "F8_E4M3": _e4m3(),
    "F8_E5M2": _e5m2(),
    "F8_E4M3FNUZ": _fnuz(4, 3, 8),
    "F8_E5M2FNUZ": _fnuz(5, 2, 16),
    "I8": np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32),
}


def e8m0(codes: NDArray[np.uint8]) -> F32:
    """2^(code - 127); NaN for 0xff. 2^-127 is a subnormal number of FP32."""
    bits = codes.astype(np.uint32) << np.uint32(23)
    bits[codes == 0] = 1 << 22
    bits[codes == 255] = 0x7FC00000
    return bits.view(np.float32)


def floats(data: memoryview, dtype: str) -> F32:
    """The values of a stored F32, BF16, F16, F8_E8M0, U8 (meaning e8m0) or FP8 tensor, flat; each is exact in FP32."""
    if dtype == "F32":
        return np.frombuffer(data, np.float32)
    if dtype == "F16":
        return np.frombuffer(data, np.float16).astype(np.float32)
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    codes = np.frombuffer(data, np.uint8)
    return e8m0(codes) if dtype in ("U8", "F8_E8M0") else BYTE_VALUES[dtype][codes]


ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E8M0": 1, **dict.fromkeys(BYTE_VALUES, 1)}


def position(flat: int, shape: tuple[int, ...]) -> str:
    """Where an element is, for people: [3, 17]."""
    return str([int(i) for i in np.unravel_index(flat, shape)]) if shape else "its only element"


def check_scales(values: F32, tensor: TensorInfo, first: int, allow: str) -> None:
    """Refuses scales that no scale can be; `first` is the flat index of the first value in the tensor.

    `allow` is "positive", "zero" (too) or "any" finite number.

    Raises:
        InputError: names tensor, position and value.
    """
    bad = ~np.isfinite(values)
    if allow == "positive":
        bad |= values <= 0
    elif allow == "zero":
        bad |= values < 0
    if bad.any():
        at = int(np.argmax(bad))
        what = {"positive": "a positive number", "zero": "zero or a positive number", "any": "a finite number"}[allow]
        raise InputError(
            f"tensor {tensor.name!r} in {tensor.file}: the scale at {position(first + at, tensor.shape)} is"
            f" {values[at]}, it must be {what}; the file is damaged or was quantised wrongly, fetch it again"
        )
