"""The inner loops of conversions, compiled by numba at their first use and kept on disk for the next process.

All arithmetic is IEEE single precision in the order written (no fast-math), except for the error statistics, which are
sums in double precision. Bits of a float are reached through integer arrays and scalars. Loops run over slices that
start at 0, since only then does LLVM use vector instructions. The kernels hold no Python lock while they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
I32 = NDArray[np.int32]

u32 = np.uint32
f32 = np.float32

INFINITY = 0x7F800000
SMALLEST_NORMAL = 2.0**-126
_STATISTICS = {"reassoc", "nnan", "ninf", "nsz"}  # their inputs are finite


def kernel(function: F, fastmath: bool | set[str] = False) -> F:
    """The function compiled. The machine code is kept beside this file, or in the user's cache folder where that is
    read-only (numba looks for both, NUMBA_CACHE_DIR first); where neither can be written it is compiled anew."""
    try:
        compiled = njit(nogil=True, cache=True, fastmath=fastmath, error_model="numpy")(function)
    except RuntimeError:  # numba's "no locator available": there is no folder to keep it in
        compiled = njit(nogil=True, fastmath=fastmath, error_model="numpy")(function)
    return cast(F, compiled)


# Decoding: codes to FP32. `scales` has a row for each row of blocks, `scale_row[i]` is that of tile row i,
# `block` the elements of a row that share a scale.


@kernel
def e4m3(codes: U8, scales: F32, scale_row: I32, block: int, out: F32) -> None:
    """F8_E4M3 times a scale. The codes 0x7f and 0xff give NaN.

    An exponent field other than 0 becomes that of FP32 by adding 120 = 127 - 7. With the field 0 the value is
    mantissa/8 x 2^-6: 2^-6 is put in front as a leading one, and taken away again.
    """
    rows, columns = out.shape
    for i in range(rows):
        for b in range((columns + block - 1) // block):
            _e4m3_run(
                codes[i, b * block : min(columns, (b + 1) * block)],
                scales[scale_row[i], b],
                out[i, b * block : min(columns, (b + 1) * block)],
            )


@kernel
def _e4m3_run(codes: U8, scale: np.float32, out: F32) -> None:
    for j in range(out.size):
        code = u32(codes[j])
        magnitude = code & u32(0x7F)
        shifted = magnitude << u32(20)
        small = f32(u32(shifted + u32(121 << 23)).view(f32) - f32(0.015625)).view(u32)
        bits = small if magnitude < u32(8) else u32(shifted + u32(120 << 23))
        bits = u32(0x7FC00000) if magnitude == u32(0x7F) else bits
        out[j] = u32(bits | ((code & u32(0x80)) << u32(24))).view(f32) * scale


@kernel
def lookup(codes: U8, table: F32, scales: F32, scale_row: I32, block: int, out: F32) -> None:
    """table[code] times a scale, for any code of eight bits."""
    rows, columns = out.shape
    for i in range(rows):
        for b in range((columns + block - 1) // block):
            scale = scales[scale_row[i], b]
            source = codes[i, b * block : min(columns, (b + 1) * block)]
            target = out[i, b * block : min(columns, (b + 1) * block)]
            for j in range(target.size):
                target[j] = table[source[j]] * scale


@kernel
def halves(pairs: U8, out: U16) -> None:
    """Two codes of four bits in a byte, the low half first, to a byte each (two bytes of `out` at a time)."""
    for j in range(pairs.size):
        code = np.uint16(pairs[j])
        out[j] = np.uint16((code & np.uint16(15)) | ((code >> np.uint16(4)) << np.uint16(8)))


@kernel
def fp4(codes: U8, scales: F32, scale_row: I32, block: int, out: F32) -> None:
    """FP4 (E2M1, a code per byte) times a scale; `block` and the columns are multiples of 16.

    As in e4m3: an exponent field other than 0 becomes that of FP32 by adding 126 = 127 - 1, the others are 0 and 1/2.
    """
    rows, columns = out.shape
    runs = block // 16
    for i in range(rows):
        for run in range(columns // 16):  # of a fixed length, which is done in one or two vector instructions
            scale = scales[scale_row[i], run // runs]
            source = codes[i, run * 16 : run * 16 + 16]
            target = out[i, run * 16 : run * 16 + 16]
            for j in range(16):
                code = u32(source[j])
                magnitude = code & u32(7)
                shifted = magnitude << u32(22)
                small = f32(u32(shifted + u32(127 << 23)).view(f32) - f32(1.0)).view(u32)
                bits = small if magnitude < u32(2) else u32(shifted + u32(126 << 23))
                target[j] = u32(bits | ((code & u32(8)) << u32(28))).view(f32) * scale


@kernel
def integers(codes: U8, zeros: F32, scales: F32, scale_row: I32, block: int, out: F32) -> None:
    """(code - zero) times a scale; `zeros` is as `scales`. Rows of `codes` may be longer than those of `out`."""
    rows, columns = out.shape
    for i in range(rows):
        for b in range((columns + block - 1) // block):
            scale = scales[scale_row[i], b]
            zero = zeros[scale_row[i], b]
            source = codes[i, b * block : min(columns, (b + 1) * block)]
            target = out[i, b * block : min(columns, (b + 1) * block)]
            for j in range(target.size):
                target[j] = (f32(source[j]) - zero) * scale


@kernel
def packed_rows(words: U32, zeros: F32, scales: F32, scale_row: I32, out: F32) -> None:
    """Eight rows of four-bit codes per row of words, the lowest bits first (GPTQ): (code - zero) times a scale.

    `zeros` and `scales` have a column for each column of words; `scale_row` is per row of `out`.
    """
    rows, columns = words.shape
    for i in range(rows):
        for p in range(8):
            shift = u32(4 * p)
            source = words[i]
            zero = zeros[scale_row[8 * i + p]]
            scale = scales[scale_row[8 * i + p]]
            target = out[8 * i + p]
            for j in range(columns):
                target[j] = (f32((source[j] >> shift) & u32(15)) - zero[j]) * scale[j]


@kernel
def packed_columns(words: U32, order: I32, zeros: F32, scales: F32, scale_row: I32, out: F32) -> None:
    """Eight columns of four-bit codes per word, `order[p]` the column at bits 4p (AWQ): (code - zero) times a scale."""
    rows, columns = words.shape
    for i in range(rows):
        zero = zeros[scale_row[i]]
        scale = scales[scale_row[i]]
        for j in range(columns):
            word = words[i, j]
            for p in range(8):
                k = 8 * j + order[p]
                out[i, k] = (f32((word >> u32(4 * p)) & u32(15)) - zero[k]) * scale[k]


@kernel
def widen(source: U16, out: U32) -> None:
    """BF16 bits to FP32 bits."""
    for j in range(source.size):
        out[j] = u32(source[j]) << u32(16)


@kernel
def turn(source: NDArray[Any], target: NDArray[Any]) -> None:
    """target [b, a] = source [a, b] transposed, in squares that stay in the cache."""
    side = 32
    for top in range(0, source.shape[0], side):
        bottom = min(source.shape[0], top + side)
        for left in range(0, source.shape[1], side):
            for j in range(left, min(source.shape[1], left + side)):
                column = source[top:bottom, j]
                row = target[j, top:bottom]
                for i in range(row.size):
                    row[i] = column[i]


# Encoding: FP32 (given as bits) to what is written.


@kernel
def _nearest_bf16(bits: np.uint32) -> Any:
    """The upper half of FP32 bits, rounded to nearest, ties to even; the bits are no NaN."""
    return u32(u32(bits) + u32(0x7FFF) + ((u32(bits) >> u32(16)) & u32(1))) >> u32(16)


@kernel
def narrow(source: U32, out: U16) -> Any:
    """FP32 bits to BF16 bits; NaN stays NaN. Returns the largest magnitude written, so 0x7f80 or more tells of
    infinity and NaN."""
    peak = np.uint16(0)
    for j in range(source.size):
        bits = source[j]
        nan = u32((bits >> u32(16)) | u32(0x40))
        value = np.uint16(nan if (bits & u32(0x7FFFFFFF)) > u32(INFINITY) else _nearest_bf16(bits))
        out[j] = value
        peak = max(peak, np.uint16(value & 0x7FFF))
    return peak


@kernel
def _peak(bits: U32) -> Any:
    """The largest magnitude, as bits: unlike floats, integers order NaN (above infinity)."""
    peak = u32(0)
    for j in range(bits.size):
        peak = max(peak, u32(bits[j] & u32(0x7FFFFFFF)))
    return peak


@kernel
def _int8_run(source: F32, scale: np.float32, out: NDArray[np.int8]) -> None:
    """round(x / scale), ties to even: adding 1.5 x 2^23 leaves the rounded number in the low bits.

    The scale is amax / 127, rounded to eight bits at the worst, so that no quotient rounds beyond +-127.
    """
    for j in range(source.size):
        shifted = f32(source[j] / scale + f32(12582912.0)).view(u32)
        out[j] = np.int8(np.int32(shifted) - np.int32(0x4B400000))


@kernel
def int8_rows(values: F32, bits: U32, bf16_scale: bool, out: NDArray[np.int8], scales: F32) -> Any:
    """Each row by its own scale, amax / 127 (1 for a row of zeros). Returns the first row with NaN or infinity, or -1.

    `bits` is `values` seen as integers. A scale that is stored as BF16 is rounded before it is used, so that what is
    read back is what was meant.
    """
    for i in range(values.shape[0]):
        peak = u32(_peak(bits[i]))
        if peak >= u32(INFINITY):
            return i
        scale = f32(1.0)
        if peak > u32(0):
            scale = max(f32(u32(peak).view(f32) / f32(127.0)), f32(SMALLEST_NORMAL))
            if bf16_scale:
                scale = u32(u32(_nearest_bf16(f32(scale).view(u32))) << u32(16)).view(f32)
        scales[i] = scale
        _int8_run(values[i], scale, out[i])
    return -1


@kernel
def _e4m3_encode_run(source: F32, scale: np.float32, out: U8) -> None:
    """F8_E4M3 codes nearest to x / scale, ties to even; |x / scale| rounds to at most 448.

    From 2^-6 upwards a code is FP32's exponent and first three bits of mantissa; below, it is x in units of 2^-9
    (which adding 2^14 leaves in the low bits).
    """
    for j in range(source.size):
        bits = f32(source[j] / scale).view(u32)
        magnitude = bits & u32(0x7FFFFFFF)
        rounded = u32(magnitude + u32(0x7FFFF) + ((magnitude >> u32(20)) & u32(1))) >> u32(20)
        small = f32(u32(magnitude).view(f32) + f32(16384.0)).view(u32) & u32(0xFF)
        code = small if magnitude < u32(121 << 23) else u32(rounded - u32(120 << 3))
        out[j] = np.uint8(code | ((bits >> u32(24)) & u32(0x80)))


@kernel
def e4m3_blocks(values: F32, bits: U32, block: int, power_of_two: bool, out: U8, scales: F32) -> Any:
    """One row of blocks (all rows given, `block` columns each) by amax / 448 (1 for a block of zeros), rounded up to
    a power of two if asked. Returns the first block with NaN or infinity, or -1."""
    rows, columns = values.shape
    for b in range((columns + block - 1) // block):
        begin, end = b * block, min(columns, (b + 1) * block)
        peak = u32(0)
        for i in range(rows):
            peak = max(peak, u32(_peak(bits[i, begin:end])))
        if peak >= u32(INFINITY):
            return b
        scale = f32(1.0)
        if peak > u32(0):
            scale = max(f32(u32(peak).view(f32) / f32(448.0)), f32(SMALLEST_NORMAL))
            if power_of_two:
                scale = u32((f32(scale).view(u32) + u32(0x7FFFFF)) & u32(INFINITY)).view(f32)
        scales[b] = scale
        for i in range(rows):
            _e4m3_encode_run(values[i, begin:end], scale, out[i, begin:end])
    return -1


def errors(
    values: F32,
    codes: U8,
    table: NDArray[np.float64],
    scales: F32,
    scale_row: I32,
    block: int,
    out: NDArray[np.float64],
) -> None:
    """Per row of `out`: the largest |table[code] x scale - value|, the sum of its squares, the sum of value^2."""
    for i in range(values.shape[0]):
        worst, squares, power = 0.0, 0.0, 0.0
        for b in range((values.shape[1] + block - 1) // block):
            source = values[i, b * block : min(values.shape[1], (b + 1) * block)]
            code = codes[i, b * block : min(values.shape[1], (b + 1) * block)]
            scale = np.float64(scales[scale_row[i], b])
            for j in range(source.size):
                value = np.float64(source[j])
                error = table[code[j]] * scale - value
                worst = max(worst, abs(error))
                squares += error * error
                power += value * value
        out[i, 0], out[i, 1], out[i, 2] = worst, squares, power


errors = kernel(errors, _STATISTICS)
