"""Scales, zero points and the like: read for the rows that a block has, checked, and laid out for the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.convert import codes as c

Read = Callable[[int, int, int], memoryview]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def unfit(tensor: TensorInfo, detail: str) -> InputError:
    """The error for a tensor that does not fit what it should be."""
    return InputError(f"tensor {tensor.name!r} in {tensor.file}: {detail}")


class ScaleGrid:
    """Scales of a [.., N, K] weight, one per block of `block` = (rows, columns); blocks do not cross a matrix's end.

    Stored as [.., ceil(N/rows), ceil(K/columns)], [.., N, 1] or [.., N] for one per row, or one number (a whole
    tensor or each matrix). Where `block` is not given it follows from the shape, in the two last cases; 0 in it is the
    whole dimension. `segments` are
    the rows of fused parts that were quantised by themselves: a block does not cross a part's end either.
    """

    def __init__(
        self,
        tensor: TensorInfo,
        number: int,
        read: Read,
        weight: TensorInfo,
        shape: tuple[int, ...],
        block: tuple[int, int] | None,
        *,
        format: str | None = None,
        allow: str = "positive",
        segments: tuple[int, ...] | None = None,
    ) -> None:
        if tensor.dtype not in c.ITEM_BYTES or tensor.dtype == "I8":
            raise unfit(tensor, f"scales cannot be {tensor.dtype}")
        if format is not None and (format == "e8m0") != (tensor.dtype in ("U8", "F8_E8M0")):
            raise unfit(tensor, f"the scales are said to be {format}, but are stored as {tensor.dtype}")
        self.tensor, self.number, self.read, self.allow = tensor, number, read, allow
        matrices, n, k = math.prod(shape[:-2]), shape[-2], shape[-1]
        if block is None:
            if tensor.numel in (1, matrices):
                block = (n, k)
            elif tensor.numel == matrices * n:
                block = (1, k)
            else:
                raise unfit(tensor, f"its shape {list(tensor.shape)} does not say which elements share a scale")
        if min(block) < 0:
            raise unfit(tensor, f"scale blocks of {block[0]} x {block[1]}")
        self.n = n
        self.block_rows, self.block_columns = min(block[0] or n, n), min(block[1] or k, k)
        if sum(segments or (n,)) != n:
            raise unfit(weight, f"its {n} rows are not the sum of the parts {list(segments or ())}")
        self.row_blocks = _row_blocks(segments or (n,), self.block_rows)
        self.grid_rows, self.columns = int(self.row_blocks[-1]) + 1, -(-k // self.block_columns)
        self.single = tensor.numel == 1 < matrices and self.grid_rows * self.columns == 1
        expected = (*shape[:-2], self.grid_rows, self.columns)
        if not self.single and _trim(tensor.shape) != _trim(expected):
            raise unfit(
                tensor,
                f"scales of shape {list(tensor.shape)} do not fit {weight.name!r} {list(shape)} with blocks of"
                f" {self.block_rows} x {self.block_columns}, they should be {list(expected)}",
            )

    def load(self, row: int, rows: int) -> tuple[F32, I32]:
        """The scales [n, columns] that `rows` rows from `row` need, and for each of these rows which of the n it is."""
        at = np.arange(row, row + rows)
        index = np.zeros(rows, np.int64)
        if not self.single:
            index = at // self.n * self.grid_rows + self.row_blocks[at % self.n]
        first, last = int(index[0]), int(index[-1])
        row_bytes = self.columns * c.ITEM_BYTES[self.tensor.dtype]
        values = c.floats(self.read(self.number, first * row_bytes, (last + 1) * row_bytes), self.tensor.dtype)
        c.check_scales(values, self.tensor, first * self.columns, self.allow)
        return np.ascontiguousarray(values.reshape(-1, self.columns)), (index - first).astype(np.int32)


def scale_factor(tensor: TensorInfo, number: int, read: Read, shape: tuple[int, ...], divide: bool) -> Any:
    """NVFP4's second scale, one number or one per matrix: a function for `FP4.combine`."""
    matrices, n = math.prod(shape[:-2]), shape[-2]
    if tensor.dtype != "F32" or tensor.numel not in (1, matrices):
        raise unfit(tensor, f"{tensor.dtype} {list(tensor.shape)}: expected one F32 number, or one per matrix")

    def combine(values: F32, row: int, rows: int) -> F32:
        factors = c.floats(read(number, 0, tensor.nbytes), "F32")
        c.check_scales(factors, tensor, 0, "positive")
        if len(factors) > 1:  # scale rows are weight rows here
            factors = factors[np.arange(row, row + rows) // n, None]
        with np.errstate(over="ignore"):  # an infinite scale shows in what it makes
            return values / factors if divide else values * factors

    return combine


def packed_zero_points(
    tensor: TensorInfo, number: int, read: Read, shape: tuple[int, ...], columns: int, bits: int
) -> Any:
    """compressed-tensors' weight_zero_point, packed down the rows: a function for `PackedRows.zeros`.

    Codes and zero points have the same offset, so it need not be taken away from either.
    """
    per_word = 32 // bits
    if len(shape) != 2 or tensor.dtype != "I32" or tensor.shape != (-(-shape[0] // per_word), columns):
        raise unfit(tensor, f"zero points {tensor.dtype} {list(tensor.shape)} do not fit a weight of {list(shape)}")

    def zeros(row: int, rows: int) -> F32:
        first, last = row // per_word, (row + rows - 1) // per_word
        data = read(number, first * columns * 4, (last + 1) * columns * 4)
        words = np.frombuffer(data, np.uint32).reshape(-1, columns)
        at = np.arange(row, row + rows)
        shifts = (bits * (at % per_word)).astype(np.uint32)[:, None]
        return ((words[at // per_word - first] >> shifts) & np.uint32((1 << bits) - 1)).astype(np.float32)

    return zeros


def check_order(tensor: TensorInfo, number: int, read: Read, k: int, group: int) -> None:
    """The group of each input feature must be that of its place, or not said (-1 throughout).

    Raises:
        InputError: it is not: the weight was quantised in an order of its own (desc_act, actorder).
    """
    types = {"I32": np.int32, "I64": np.int64}
    if tensor.dtype not in types or tensor.shape != (k,):
        raise unfit(tensor, f"{tensor.dtype} {list(tensor.shape)} cannot hold the groups of {k} input features")
    stored = np.frombuffer(read(number, 0, tensor.nbytes), types[tensor.dtype])
    if not (np.array_equal(stored, np.arange(k) // group) or (stored == -1).all()):
        raise unfit(tensor, "its groups are not in the order of the columns (desc_act), which is not supported")


def check_weight_shape(tensor: TensorInfo, number: int, read: Read, shape: tuple[int, ...]) -> None:
    """compressed-tensors' weight_shape must say what the packed weight's own shape says.

    Raises:
        InputError: it does not.
    """
    types = {"I32": np.int32, "I64": np.int64}
    if tensor.dtype not in types or tensor.numel != len(shape):
        raise unfit(tensor, f"{tensor.dtype} {list(tensor.shape)} cannot hold the shape of a weight")
    stored = np.frombuffer(read(number, 0, tensor.nbytes), types[tensor.dtype]).tolist()
    if stored != list(shape):
        raise unfit(tensor, f"it says that the weight is {stored}, but {list(shape)} was planned")


def _row_blocks(segments: tuple[int, ...], block: int) -> NDArray[np.int64]:
    """For each row of a matrix the row of blocks that it is in."""
    parts, first = [], 0
    for rows in segments:
        parts.append(first + np.arange(rows) // block)
        first += -(-rows // block)
    return np.concatenate(parts)


def _trim(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones, which writers add and leave out as they like ([N, 1] and [N])."""
    return tuple(size for size in shape if size != 1)
