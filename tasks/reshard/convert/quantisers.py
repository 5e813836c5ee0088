"""FP32 tiles to quantised weights and their scales.

Quantisers take whole rows (int8) or whole blocks (FP8), so that what they write does not depend on how a weight is
split over ranks afterwards. Their errors are those against the FP32 values that they were given.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.convert import codes as c
from tasks.reshard.convert import kernels
from tasks.reshard.convert.encoders import Output, Outputs, as_bytes
from tasks.reshard.convert.scratch import scratch

F32 = NDArray[np.float32]


class Errors:
    """The error of each row, so that the sum does not depend on who did which row when."""

    def __init__(self, rows: int) -> None:
        self.rows = np.zeros((rows, 3))

    def total(self, elements: int) -> dict[str, float]:
        """max_abs; rms; rms_relative, to the root mean square of the tensor's values (0 where all are 0)."""
        worst = float(self.rows[:, 0].max(initial=0.0))
        squares, power = math.fsum(self.rows[:, 1]), math.fsum(self.rows[:, 2])
        relative = math.sqrt(squares / power) if power else 0.0
        figures = {"max_abs": worst, "rms": math.sqrt(squares / max(1, elements)), "rms_relative": relative}
        return {
            name: float(f"{value:.9g}") for name, value in figures.items()
        }  # vector widths differ in the last digits


class ToInt8:
    """int8 [.., N, K] and a scale per row [.., N, 1], F32 or BF16: round(x / scale), scale = amax / 127.

    Symmetric weight-only quantisation (w8a16). A row of zeros has the scale 1. Codes are within +-127.
    """

    align = 1
    tile_rows = 0

    def __init__(self, tensor: TensorInfo, shape: tuple[int, ...], scale_dtype: str) -> None:
        if scale_dtype not in ("F32", "BF16"):
            raise ValueError(f"int8 scales are F32 or BF16, not {scale_dtype}")
        self.tensor, self.shape, self.bf16 = tensor, shape, scale_dtype == "BF16"
        self.outputs: Outputs = (("I8", shape), (scale_dtype, (*shape[:-1], 1)))
        self.statistics = Errors(math.prod(shape[:-1]))

    def open(self, row: int, rows: int) -> Int8Sink:
        return Int8Sink(self, row, rows)

    def errors(self) -> dict[str, float]:
        return self.statistics.total(math.prod(self.shape))


class Int8Sink:
    def __init__(self, encoder: ToInt8, row: int, rows: int) -> None:
        self.encoder, self.row = encoder, row
        self.codes = scratch("output 0", rows * encoder.shape[-1], np.dtype(np.int8)).reshape(rows, -1)
        self.scales = scratch("output 1", rows, np.dtype(np.float32))

    def add(self, begin: int, tile: F32) -> None:
        end = begin + len(tile)
        codes, scales = self.codes[begin:end], self.scales[begin:end]
        bad = kernels.int8_rows(tile, tile.view(np.uint32), self.encoder.bf16, codes, scales)
        if bad >= 0:
            raise _not_finite(self.encoder.tensor, self.encoder.shape, self.row + begin + bad, tile[bad])
        at = self.row + begin
        kernels.errors(
            tile,
            codes.view(np.uint8),
            _INT8,
            scales[:, None],
            np.arange(len(tile), dtype=np.int32),
            tile.shape[1],
            self.encoder.statistics.rows[at : at + len(tile)],
        )

    def finish(self) -> list[Output]:
        scales = self.scales
        if self.encoder.bf16:
            scales = (scales.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return [
            (0, self.row * self.encoder.shape[-1], as_bytes(self.codes.reshape(-1))),
            (1, self.row * scales.itemsize, as_bytes(scales)),
        ]


class ToFp8Blocks:
    """F8_E4M3 [.., N, K] and a scale per block [.., ceil(N/bn), ceil(K/bk)]: nearest(x / scale), scale = amax / 448.

    DeepSeek-V3's format (`weight_scale_inv`: weight = code x scale). A block of zeros has the scale 1; blocks at the
    edges are smaller. With `power_of_two`, or scales stored as F8_E8M0 or U8, scales are rounded up to 2^n.
    """

    def __init__(
        self,
        tensor: TensorInfo,
        shape: tuple[int, ...],
        scale_dtype: str,
        block: tuple[int, int],
        power_of_two: bool,
    ) -> None:
        if scale_dtype not in ("F32", "F8_E8M0", "U8"):
            raise ValueError(f"FP8 block scales are F32, F8_E8M0 or U8, not {scale_dtype}")
        self.tensor, self.shape, self.block = tensor, shape, block
        self.e8m0 = scale_dtype != "F32"
        self.power_of_two = power_of_two or self.e8m0
        *lead, n, k = shape
        self.grid = (-(-n // block[0]), -(-k // block[1]))
        self.outputs: Outputs = (("F8_E4M3", shape), (scale_dtype, (*lead, *self.grid)))
        self.tile_rows = block[0]
        self.align = block[0] if n % block[0] == 0 or math.prod(lead) == 1 else n
        self.statistics = Errors(math.prod(shape[:-1]))

    def open(self, row: int, rows: int) -> Fp8Sink:
        return Fp8Sink(self, row, rows)

    def errors(self) -> dict[str, float]:
        return self.statistics.total(math.prod(self.shape))

    def grid_row(self, row: int) -> int:
        """Which row of scales a row has, or begins."""
        n = self.shape[-2]
        return row // n * self.grid[0] + -(-(row % n) // self.block[0])


class Fp8Sink:
    def __init__(self, encoder: ToFp8Blocks, row: int, rows: int) -> None:
        self.encoder, self.row = encoder, row
        self.first = encoder.grid_row(row)
        count = encoder.grid_row(row + rows) - self.first
        self.codes = scratch("output 0", rows * encoder.shape[-1], np.dtype(np.uint8)).reshape(rows, -1)
        self.scales = scratch("output 1", count * encoder.grid[1], np.dtype(np.float32)).reshape(count, -1)

    def add(self, begin: int, tile: F32) -> None:
        encoder = self.encoder
        at = self.row + begin
        codes = self.codes[begin : begin + len(tile)]
        scales = self.scales[encoder.grid_row(at) - self.first]
        columns = encoder.block[1]
        bad = kernels.e4m3_blocks(tile, tile.view(np.uint32), columns, encoder.power_of_two, codes, scales)
        if bad >= 0:
            row = int(np.argmin(np.isfinite(tile).all(axis=1)))
            raise _not_finite(encoder.tensor, encoder.shape, at + row, tile[row])
        kernels.errors(
            tile,
            codes,
            _E4M3,
            scales[None, :],
            np.zeros(len(tile), np.int32),
            columns,
            encoder.statistics.rows[at : at + len(tile)],
        )

    def finish(self) -> list[Output]:
        scales: NDArray[Any] = self.scales.reshape(-1)
        if self.encoder.e8m0:
            scales = (scales.view(np.uint32) >> np.uint32(23)).astype(np.uint8)
        return [
            (0, self.row * self.encoder.shape[-1], as_bytes(self.codes.reshape(-1))),
            (1, self.first * self.encoder.grid[1] * scales.itemsize, as_bytes(scales)),
        ]


_INT8 = c.BYTE_VALUES["I8"].astype(np.float64)
_E4M3 = c.BYTE_VALUES["F8_E4M3"].astype(np.float64)


def _not_finite(tensor: TensorInfo, shape: tuple[int, ...], row: int, values: F32) -> InputError:
    column = int(np.argmin(np.isfinite(values)))
    at = c.position(row * shape[-1] + column, shape)
    return InputError(
        f"tensor {tensor.name!r} in {tensor.file}: the value at {at} is {values[column]}, which cannot be quantised;"
        " the file is damaged, or the model is: fetch it again"
    )
