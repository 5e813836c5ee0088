"""What a plan consists of: files to write, and the streams of source bytes that fill them.

A stream is what is read together: one stored tensor, or the tensors of a quantised weight that a conversion turns
into others. What it yields is cut into pieces, each a regular run of byte ranges that goes to one target file. So
copying and converting are one thing to whoever splits, and a weight is always converted whole, before it is split:
a scale computed from a rank's own slice would not be the whole model's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from day0.architecture.slicing import Range, Rank
from day0.artifacts.shards import Dropped
from day0.safetensors_header import TensorInfo


def with_changes(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with a plan's `config_changes`."""
    changed = copy.deepcopy(dict(config))
    for path, value in changes.items():
        *outer, key = path.split(".")
        place = changed
        for part in outer:
            place = place[part]
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return changed


class Piece(NamedTuple):
    """`rows` runs of `run` bytes, `stride` bytes apart in what a stream yields, one after another in a target file.

    `offset` is that of the first run, from the start of output number `output` of the stream; `target_offset` is
    absolute in file number `target` of the plan.
    """

    target: int
    target_offset: int
    offset: int
    rows: int
    run: int
    stride: int
    output: int = 0

    @property
    def nbytes(self) -> int:
        return self.rows * self.run


@dataclass(frozen=True, slots=True)
class Conversion:
    """How stored tensors become others: a name in tasks/reshard/convert, what comes out, and its parameters.

    `outputs` are (dtype as in a safetensors header, shape); `parameters` are sorted pairs, so that equal conversions
    compare equal.
    """

    name: str
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    parameters: tuple[tuple[str, Any], ...] = ()

    def parameter(self, name: str, default: Any = None) -> Any:
        return dict(self.parameters).get(name, default)


class Stream(NamedTuple):
    """`inputs[0]` is read from front to back; the others (scales) lie where their TensorInfo says, in any shard.

    Without a conversion there is one input, and the one output is its bytes as they are stored.
    """

    inputs: tuple[TensorInfo, ...]
    pieces: tuple[Piece, ...]
    conversion: Conversion | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """`count` repetitions of `pattern`: padding, and constants that no checkpoint has."""

    target: int
    target_offset: int
    pattern: bytes
    count: int


class Origin(NamedTuple):
    """A part of a written tensor: a slice of a source tensor, one range per dimension; `tensor` is None for a fill.

    With a conversion the slice is one of what the conversion makes of the tensor. The parts of a written tensor follow
    each other in its bytes, except that neighbours with an `axis` are joined along that dimension.
    """

    tensor: str | None
    slice: tuple[Range, ...]
    conversion: str = "none"
    axis: int | None = None


class Written(NamedTuple):
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
    """All that the writer does.

    `streams` has, per source file, those whose first input lies in it, by ascending offset: files may be taken in any
    order and at the same time, and no two pieces or fills overlap. Every byte of every target file is in its header,
    in one piece or in one fill.
    """

    layout: str
    engine: str
    tp: int
    pp: int
    ep: int
    ranks: tuple[Rank, ...]
    stages: tuple[Range, ...]
    """The layers of each pipeline stage."""
    files: tuple[TargetFile, ...]
    streams: Mapping[str, tuple[Stream, ...]]
    fills: tuple[Fill, ...]
    dropped: tuple[Dropped, ...]
    config_changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that must differ for the engine to read what was written; None removes the key."""

    @property
    def bytes_read(self) -> int:
        """Of tensor data; each byte once."""
        return sum(tensor.nbytes for streams in self.streams.values() for s in streams for tensor in s.inputs)

    @property
    def bytes_written(self) -> int:
        return sum(file.nbytes for file in self.files)
