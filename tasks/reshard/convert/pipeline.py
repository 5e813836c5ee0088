"""A decoder and an encoder as one conversion: block by block, in tiles that stay in the processor's cache."""

from __future__ import annotations

import math

import numpy as np

from tasks.reshard.convert.decoders import Decoder
from tasks.reshard.convert.encoders import Encoder, Output
from tasks.reshard.convert.scratch import scratch

TILE_ELEMENTS = 1 << 16  # 256 KiB as FP32


class Pipeline:
    """`unit` is in bytes of the first input. What `convert` returns is the thread's own memory, used again by its next
    call of any conversion."""

    def __init__(self, decoder: Decoder, encoder: Encoder, by_rows: bool) -> None:
        """`by_rows` is False where elements are taken one by one, as rows of one element."""
        self.decoder, self.encoder = decoder, encoder
        self.columns = decoder.shape[-1] if by_rows else 1
        rows = math.lcm(decoder.unit_rows, encoder.align)
        self.unit = rows // decoder.unit_rows * decoder.unit_bytes
        self.matrix = decoder.shape[-2] if by_rows else 0

    def convert(self, begin: int, data: memoryview) -> list[Output]:
        """See registry.Converter."""
        decoder, encoder = self.decoder, self.encoder
        if begin % self.unit or (len(data) % self.unit and begin + len(data) != decoder.tensor.nbytes):
            raise ValueError(f"a block of {decoder.tensor.name!r} is not whole units of {self.unit} bytes")
        if not len(data):
            return []
        codes = np.frombuffer(data.toreadonly(), np.uint8)  # kernels are compiled for read-only arrays
        row = begin // decoder.unit_bytes * decoder.unit_rows
        rows = len(data) // decoder.unit_bytes * decoder.unit_rows
        scales = decoder.scales(row, rows)
        sink = encoder.open(row, rows)
        at = 0
        while at < rows:
            count = self._tile(row + at, rows - at)
            tile = scratch("tile", count * self.columns, np.dtype(np.float32)).reshape(count, self.columns)
            stored = codes[self._bytes(at) : self._bytes(at + count)]
            decoder.decode(stored, scales, at, tile)
            sink.add(at, tile)
            at += count
        return sink.finish()

    def errors(self) -> dict[str, float] | None:
        return self.encoder.errors()

    def _bytes(self, rows: int) -> int:
        return rows // self.decoder.unit_rows * self.decoder.unit_bytes

    def _tile(self, row: int, left: int) -> int:
        """Rows of the next tile: within one matrix, and whole blocks of what the encoder writes."""
        unit = self.decoder.unit_rows
        count = self.encoder.tile_rows or max(1, TILE_ELEMENTS // self.columns // unit) * unit
        if self.matrix:
            count = min(count, self.matrix - row % self.matrix)
        return min(count, left)
