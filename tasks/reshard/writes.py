"""What a plan consists of: files to write, and the steps that fill them, as byte ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from day0.artifacts.shards import Dropped
from day0.safetensors_header import TensorInfo
from tasks.reshard.slicing import Range


@dataclass(frozen=True, slots=True)
class Piece:
    """`rows` runs of `run` bytes, `stride` bytes apart in the source file, one after another in the target file."""

    target: int
    """Index into the plan's files."""
    target_offset: int
    source_offset: int
    rows: int
    run: int
    stride: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.run


@dataclass(frozen=True, slots=True)
class Copy:
    """One source tensor, read once, and every piece of it that is wanted."""

    source: TensorInfo
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Fill:
    """`count` repetitions of `pattern`: padding, and constants that no checkpoint has."""

    target: int
    target_offset: int
    pattern: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Origin:
    """A part of a written tensor: the slice of a source tensor, one range per dimension; None for a fill."""

    tensor: str | None
    slice: tuple[Range, ...]
    conversion: str


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor of a target file; `begin` and `end` are absolute byte offsets."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class TargetFile:
    """A safetensors file to write: `name` relative to the output folder, `header` its bytes before the data."""

    name: str
    rank: int
    header: bytes
    nbytes: int
    tensors: tuple[Written, ...]


@dataclass(frozen=True)
class WritePlan:
    """All that the writer does. `rank` counts tensor parallel ranks fastest: pp * tp_size + tp."""

    layout: str
    engine: str
    tp: int
    pp: int
    files: tuple[TargetFile, ...]
    steps: tuple[Copy | Fill, ...]
    dropped: tuple[Dropped, ...]
    config_changes: Mapping[str, Any]
    """Keys of config.json that must differ for the engine to read what was written."""

    @property
    def ranks(self) -> int:
        return self.tp * self.pp

    @property
    def bytes_read(self) -> int:
        return sum(step.source.nbytes for step in self.steps if isinstance(step, Copy))

    @property
    def bytes_written(self) -> int:
        return sum(file.nbytes for file in self.files)
