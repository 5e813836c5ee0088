"""FP32 tiles to floating point, as they are or with the last two dimensions exchanged; what all encoders share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from day0.errors import InputError
from day0.safetensors_header import TensorInfo
from tasks.reshard.convert import codes as c
from tasks.reshard.convert import kernels
from tasks.reshard.convert.scratch import scratch

F32 = NDArray[np.float32]
Output = tuple[int, int, memoryview]
Outputs = tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape of each

FLOATS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
}


class Sink(Protocol):
    """Where the tiles of one block go."""

    def add(self, begin: int, tile: F32) -> None:
        """Rows `begin`... of the block."""

    def finish(self) -> list[Output]: ...


class Encoder(Protocol):
    outputs: Outputs
    align: int
    """Rows that a block must begin at a multiple of."""
    tile_rows: int
    """Rows that a tile must have, counted from the start of each matrix; 0 where it does not matter."""

    def open(self, row: int, rows: int) -> Sink: ...

    def errors(self) -> dict[str, float] | None: ...


class ToFloats:
    """BF16, F16 or F32, rounded to nearest, ties to even. What becomes infinity or NaN on the way is refused, unless
    `keep` allows it ("nan", "overflow"), or the tensor had it itself (`exact` decoders)."""

    align = 1
    tile_rows = 0

    def __init__(
        self, tensor: TensorInfo, dtype: str, shape: tuple[int, ...], exact: bool, keep: frozenset[str]
    ) -> None:
        self.tensor, self.dtype, self.shape = tensor, dtype, shape
        self.exact, self.keep = exact, keep
        self.outputs: Outputs = ((dtype, shape),)
        self.item = FLOATS[dtype]

    def open(self, row: int, rows: int) -> FloatSink:
        return FloatSink(self, row, rows)

    def errors(self) -> None:
        return None

    def encode(self, row: int, tile: F32, out: NDArray[Any]) -> None:
        """`tile` [rows, columns], rows from `row` of the tensor, into as many elements."""
        values = tile.reshape(-1)
        if self.dtype == "BF16":
            suspicious = kernels.narrow(values.view(np.uint32), out) >= kernels.INFINITY >> 16
        else:
            with np.errstate(over="ignore"):
                out[:] = values
            suspicious = not np.isfinite(out).all()
        if suspicious:
            self._check(row * tile.shape[1], values, out)

    def _check(self, first: int, values: F32, out: NDArray[Any]) -> None:
        written = (out.astype(np.uint32) << np.uint32(16)).view(np.float32) if self.dtype == "BF16" else out
        nan, infinite = np.isnan(written), np.isinf(written)
        if self.exact:
            nan, infinite = nan & False, infinite & np.isfinite(values)
        if "nan" not in self.keep and nan.any():
            at = c.position(first + int(np.argmax(nan)), self.shape)
            raise InputError(
                f"tensor {self.tensor.name!r} in {self.tensor.file}: the code at {at} is NaN; the file is damaged or"
                " was quantised wrongly, fetch it again"
            )
        if "overflow" not in self.keep and infinite.any():
            at = c.position(first + int(np.argmax(infinite)), self.shape)
            raise InputError(
                f"tensor {self.tensor.name!r} in {self.tensor.file}: the value at {at} is too large for {self.dtype};"
                " choose BF16 or F32, or fetch the file again if it should not be"
            )


class FloatSink:
    def __init__(self, encoder: ToFloats, row: int, rows: int) -> None:
        self.encoder, self.row = encoder, row
        self.columns = encoder.shape[-1] if encoder.shape else 1
        self.rows = rows
        self.out: NDArray[Any] | None = None

    def add(self, begin: int, tile: F32) -> None:
        columns = tile.shape[1]
        if self.out is None:
            self.columns = columns
            self.out = scratch("output 0", self.rows * columns, self.encoder.item)
        part = self.out[begin * columns : (begin + len(tile)) * columns]
        self.encoder.encode(self.row + begin, tile, part)

    def finish(self) -> list[Output]:
        if self.out is None:
            return []
        return [(0, self.row * self.columns * self.encoder.item.itemsize, as_bytes(self.out))]


class Transposed:
    """What `inner` writes, with the last two dimensions exchanged; a block is whole matrices."""

    tile_rows = 0

    def __init__(self, inner: ToFloats) -> None:
        self.inner = inner
        *lead, n, k = inner.shape
        self.n, self.k, self.align = n, k, n
        self.outputs: Outputs = ((inner.dtype, (*lead, k, n)),)

    def open(self, row: int, rows: int) -> TransposedSink:
        return TransposedSink(self, row, rows)

    def errors(self) -> None:
        return None


class TransposedSink:
    def __init__(self, encoder: Transposed, row: int, rows: int) -> None:
        self.encoder, self.row = encoder, row
        self.out = scratch("output 0", rows * encoder.k, encoder.inner.item).reshape(-1, encoder.k, encoder.n)

    def add(self, begin: int, tile: F32) -> None:
        part = scratch("transposed", tile.size, self.encoder.inner.item)
        self.encoder.inner.encode(self.row + begin, tile, part)
        matrix, start = divmod(begin, self.encoder.n)  # tiles do not cross matrices
        kernels.turn(part.reshape(tile.shape), self.out[matrix][:, start : start + len(tile)])

    def finish(self) -> list[Output]:
        return [(0, self.row * self.encoder.k * self.encoder.inner.item.itemsize, as_bytes(self.out.reshape(-1)))]


def as_bytes(array: NDArray[Any]) -> memoryview:
    return array.view(np.uint8).data
