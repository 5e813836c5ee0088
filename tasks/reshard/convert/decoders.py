"""Stored weights to FP32 tiles: one class per way to store.

A decoder sees its tensor as rows, whatever the leading dimensions: [.., N, K] has L x N rows of K elements. Scales are
read for the rows of a block only. Order of operations, always in FP32: (value - zero) x scale, rounded once; NVFP4's
two scales are multiplied first, as modelopt's NVFP4QTensor.dequantize does, or divided, as compressed-tensors does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from day0.safetensors_header import TensorInfo
from tasks.reshard.convert import codes as c
from tasks.reshard.convert import kernels
from tasks.reshard.convert.scales import Read, ScaleGrid, check_order, unfit
from tasks.reshard.convert.scratch import scratch

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]

AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7], np.int32)


class Decoder(Protocol):
    tensor: TensorInfo
    shape: tuple[int, ...]
    """Of what is stored, once unpacked: [.., N, K]."""
    unit_rows: int
    """Rows that cannot be decoded apart, in `unit_bytes` of the stored tensor."""
    unit_bytes: int
    exact: bool
    """Infinity and NaN in the tile are the tensor's own, not an overflow or a damaged code."""

    def scales(self, row: int, rows: int) -> Any:
        """What `decode` needs beside the codes for `rows` rows from `row`."""

    def decode(self, codes: U8, scales: Any, begin: int, out: F32) -> None:
        """Writes the rows of `out` [rows, K] from their stored bytes; `begin` is the first row within the `scales`."""


class Floats:
    """BF16, F16 or F32 as they are; elements are taken one by one, so a block may begin at any of them."""

    exact = True

    def __init__(self, tensor: TensorInfo, by_rows: bool) -> None:
        if tensor.dtype not in ("BF16", "F16", "F32"):
            raise unfit(tensor, f"{tensor.dtype} where BF16, F16 or F32 is expected")
        self.tensor = tensor
        self.shape = tensor.shape
        self.unit_rows = 1
        self.unit_bytes = c.ITEM_BYTES[tensor.dtype] * (tensor.shape[-1] if by_rows else 1)

    def scales(self, row: int, rows: int) -> None:
        return None

    def decode(self, codes: U8, scales: None, begin: int, out: F32) -> None:
        if codes.ctypes.data % 4:  # numba would compile another kernel for unaligned arrays
            codes = codes.copy()
        if self.tensor.dtype == "BF16":
            kernels.widen(_readonly(codes.view(np.uint16)), out.reshape(-1).view(np.uint32))
        else:
            with np.errstate(invalid="ignore"):  # signalling NaN
                out.reshape(-1)[:] = codes.view(np.float16 if self.tensor.dtype == "F16" else np.float32)


class Bytes:
    """FP8 or int8, [.., N, K]."""

    exact = False
    unit_rows = 1

    def __init__(
        self, tensor: TensorInfo, grid: Callable[[tuple[int, ...]], ScaleGrid], dtypes: tuple[str, ...]
    ) -> None:
        if tensor.dtype not in dtypes:
            raise unfit(tensor, f"{tensor.dtype} where {' or '.join(dtypes)} is expected")
        self.tensor = tensor
        self.shape = _matrix(tensor, tensor.shape)
        self.unit_bytes = self.shape[-1]
        self.grid = grid(self.shape)
        self.table = c.BYTE_VALUES[tensor.dtype]

    def scales(self, row: int, rows: int) -> tuple[F32, I32]:
        return self.grid.load(row, rows)

    def decode(self, codes: U8, scales: tuple[F32, I32], begin: int, out: F32) -> None:
        values, index = scales
        codes = codes.reshape(out.shape)
        index = index[begin : begin + len(out)]
        if self.tensor.dtype == "F8_E4M3":
            kernels.e4m3(codes, _readonly(values), index, self.grid.block_columns, out)
        else:
            kernels.lookup(codes, self.table, _readonly(values), index, self.grid.block_columns, out)


class FP4:
    """FP4 codes, two to a byte, low half first.

    `combine`, where there are scales of scales, makes the scales of rows from those of their groups.
    """

    exact = False
    unit_rows = 1

    def __init__(
        self,
        tensor: TensorInfo,
        shape: tuple[int, ...],
        grid: ScaleGrid,
        combine: Callable[[F32, int, int], F32] | None = None,
    ) -> None:
        self.tensor, self.shape, self.unit_bytes = tensor, shape, shape[-1] // 2
        self.grid, self.combine = grid, combine
        if grid.block_columns % 16 or shape[-1] % grid.block_columns:
            raise unfit(tensor, f"groups of {grid.block_columns} codes in rows of {shape[-1]}")

    def scales(self, row: int, rows: int) -> tuple[F32, I32]:
        values, index = self.grid.load(row, rows)
        return (values if self.combine is None else self.combine(values, row, rows)), index

    def decode(self, codes: U8, scales: tuple[F32, I32], begin: int, out: F32) -> None:
        values, index = scales
        index = index[begin : begin + len(out)]
        kernels.fp4(_nibbles(codes, len(out)), _readonly(values), index, self.grid.block_columns, out)


class PackedRows:
    """compressed-tensors' pack-quantized: unsigned codes of four or eight bits in int32 words along K, lowest bits
    first, rows padded to whole words. A code means code - 2^(bits - 1), less the zero point where there is one.

    `zeros(row, rows)` are zero points per row and group.
    """

    exact = False
    unit_rows = 1

    def __init__(
        self,
        tensor: TensorInfo,
        shape: tuple[int, ...],
        bits: int,
        grid: ScaleGrid,
        zeros: Callable[[int, int], F32] | None = None,
    ) -> None:
        self.tensor, self.shape, self.bits, self.grid, self.zeros = tensor, shape, bits, grid, zeros
        self.unit_bytes = tensor.shape[-1] * 4

    def scales(self, row: int, rows: int) -> tuple[F32, F32, I32]:
        values, index = self.grid.load(row, rows)
        middle = np.full(values.shape, 1 << (self.bits - 1), np.float32)
        return values, (middle if self.zeros is None else self.zeros(row, rows)), index

    def decode(self, codes: U8, scales: tuple[F32, F32, I32], begin: int, out: F32) -> None:
        values, zeros, index = scales
        index = index[begin : begin + len(out)]
        codes = _nibbles(codes, len(out)) if self.bits == 4 else codes.reshape(len(out), -1)
        kernels.integers(_readonly(codes), zeros, _readonly(values), index, self.grid.block_columns, out)


class PackedColumns:
    """GPTQ and AWQ: [K, N], input features first, with scales [K/g, N] and packed zero points [K/g, N/8].

    GPTQ packs eight rows to a word, lowest bits first (int32 [K/8, N]); its files keep zero points less one
    (`zero_offset` 1), those of format gptq_v2 as they are. AWQ packs eight columns (int32 [K, N/8]), in the order
    0, 2, 4, 6, 1, 3, 5, 7. Without zero points all are 8. What is decoded has to be transposed to become a weight.
    """

    exact = False

    def __init__(self, tensor: TensorInfo, inputs: dict[str, tuple[int, TensorInfo]], read: Read, **how: Any) -> None:
        self.awq = bool(how["awq"])
        self.tensor, self.inputs, self.read = tensor, inputs, read
        self.zero_offset = int(how["zero_offset"])
        if tensor.dtype != "I32" or len(tensor.shape) != 2 or 0 in tensor.shape:
            raise unfit(tensor, f"{tensor.dtype} {list(tensor.shape)} where int32 of two dimensions is expected")
        k, n = tensor.shape
        k, n = (k, n * 8) if self.awq else (k * 8, n)
        self.shape: tuple[int, ...] = (k, n)
        self.unit_rows = 1 if self.awq else 8
        self.unit_bytes = tensor.shape[1] * 4
        scale_shape = inputs["scale"][1].shape
        self.group = int(how["group_size"] or 0)
        if self.group <= 0:  # said to be one group, or not said
            self.group = max(1, k // max(1, scale_shape[0])) if len(scale_shape) == 2 else k
        groups = -(-k // self.group)
        expected = {
            "scale": (("F16", "BF16", "F32"), (groups, n)),
            "zero_point": (("I32",), (groups, n // 8)),
            "g_idx": (("I32", "I64"), (k,)),
        }
        for role, (_, info) in inputs.items():
            dtypes, shape = expected[role]
            if info.dtype not in dtypes or info.shape != shape or (role == "zero_point" and n % 8):
                wanted = f"{' or '.join(dtypes)} {list(shape)}"
                raise unfit(info, f"{role} of {info.dtype} {list(info.shape)}, expected {wanted}")
        if "g_idx" in inputs:
            number, info = inputs["g_idx"]
            check_order(info, number, read, k, self.group)

    def scales(self, row: int, rows: int) -> tuple[F32, F32, I32]:
        n = self.shape[1]
        index = np.arange(row, row + rows) // self.group
        first, last = int(index[0]), int(index[-1])
        number, info = self.inputs["scale"]
        size = n * c.ITEM_BYTES[info.dtype]
        values = c.floats(self.read(number, first * size, (last + 1) * size), info.dtype).reshape(-1, n)
        c.check_scales(values.reshape(-1), info, first * n, "any")
        zeros = np.full(values.shape, 8, np.float32)
        if "zero_point" in self.inputs:
            number, _ = self.inputs["zero_point"]
            words = np.frombuffer(self.read(number, first * n // 2, (last + 1) * n // 2), np.uint32).reshape(-1, n // 8)
            order = AWQ_ORDER if self.awq else range(8)
            for place, column in enumerate(order):
                zeros[:, column::8] = ((words >> np.uint32(4 * place)) & 15) + self.zero_offset
        return np.ascontiguousarray(values), zeros, (index - first).astype(np.int32)

    def decode(self, codes: U8, scales: tuple[F32, F32, I32], begin: int, out: F32) -> None:
        values, zeros, index = scales
        if codes.ctypes.data % 4:
            codes = codes.copy()
        words = _readonly(codes.view(np.uint32)).reshape(-1, self.tensor.shape[1])
        index = index[begin : begin + len(out)]
        if self.awq:
            kernels.packed_columns(words, AWQ_ORDER, zeros, _readonly(values), index, out)
        else:
            kernels.packed_rows(words, zeros, _readonly(values), index, out)


def _matrix(tensor: TensorInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) < 2 or 0 in shape:
        raise unfit(tensor, f"its shape {list(shape)} is not that of matrices")
    return shape


def _nibbles(codes: U8, rows: int) -> U8:
    wide = scratch("codes", codes.size, np.dtype(np.uint16))
    kernels.halves(codes, wide)
    return wide.view(np.uint8).reshape(rows, -1)


def _readonly(array: NDArray[Any]) -> NDArray[Any]:
    """Seen as read-only, as stored bytes are, so that each kernel is compiled for one kind of array."""
    view = array.view()
    view.setflags(write=False)
    return view
