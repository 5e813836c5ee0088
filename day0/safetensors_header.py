"""A strict reader of safetensors headers: no tensor library, no mmap, nothing believed before it is checked.

A file is eight bytes (the header's length, little endian), the header (JSON, first byte `{`, may be padded with
spaces), and the data, which the tensors must cover exactly: no hole, no overlap, nothing left over. The format is
described at https://github.com/huggingface/safetensors#format; where its own library is laxer (duplicate names,
overflowing shapes, spaces before the header), this reader is not.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from day0.artifacts.snapshot import FaultKind
from day0.disguise import disguise
from day0.strict_json import JsonFault, NotRegular, RepeatedKeys, decode, open_regular

#: Bits of one element. The names are those of the format.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_TENSORS = 500_000  # in one file; the largest published checkpoints have half a million over all files
MAX_NAME = 512
MAX_DIMENSIONS = 32
_LIMIT = 1 << 63
_UNFIT = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode categories: control, format (bidi marks), surrogate, separators

#: How the writers in use put a header: the fields in this order, no escapes. Other spellings are read more slowly.
_HEAD = re.compile(r'\{(?:"__metadata__": ?(\{[^{}]*\}), ?)?')
_ENTRY = re.compile(
    r'"([^"\\\x00-\x1f]+)": ?\{"dtype": ?"([A-Z0-9_]+)", ?"shape": ?\[([0-9, ]*)\], ?'
    r'"data_offsets": ?\[(0|[1-9][0-9]{0,17}), ?(0|[1-9][0-9]{0,17})\]\}(, ?|\} *\Z)'
)
_SHAPE = re.compile(r"(?:(?:0|[1-9][0-9]{0,17})(?:, ?(?:0|[1-9][0-9]{0,17}))*)?")

_TEXT = frozenset(range(32, 127)) | {9, 10, 13}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `begin` and `end` are absolute byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """A file's header. The data starts at byte `data_start`; the tensors are in the order of their data."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int
    file_bytes: int


class HeaderFault(Exception):
    """What is wrong with a header; `tensor` is None where it is the file as a whole."""

    def __init__(self, kind: FaultKind, tensor: str | None, detail: str) -> None:
        super().__init__(detail if tensor is None else f"tensor {tensor!r}: {detail}")
        self.kind = kind
        self.tensor = tensor
        self.detail = detail


def read_header(path: Path, name: str | None = None) -> Header:
    """The header of a safetensors file; its tensors carry `name` (by default the file's own) as their file.

    Raises:
        HeaderFault: the first thing that is wrong with it.
        OSError: it cannot be opened or read.
    """
    header, faults = examine(path, name)
    if faults or header is None:
        raise faults[0]
    return header


def examine(path: Path, name: str | None = None) -> tuple[Header | None, list[HeaderFault]]:
    """The header as far as it can be read, and everything that is wrong with it.

    Raises:
        OSError: the file cannot be opened or read.
    """
    try:
        text, size = read_text(path)
    except HeaderFault as fault:
        return None, [fault]
    return parse(text, size, name or path.name)


def read_text(path: Path) -> tuple[bytes, int]:
    """A header's JSON as it lies in the file, not looked into, and the file's size.

    Raises:
        HeaderFault: it is no regular file, no safetensors file, or shorter than its header.
        OSError: the file cannot be opened or read.
    """
    try:
        descriptor = open_regular(path)
    except NotRegular as error:
        raise HeaderFault("not_regular", None, str(error)) from error
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        length = header_length(os.pread(descriptor, 64, 0), size)
        file.seek(8)
        text = b""
        while len(text) < length and (piece := file.read(length - len(text))):
            text += piece
    if len(text) < length:
        raise HeaderFault("header", None, "the file became shorter while it was read")
    return text, size


def header_length(start: bytes, file_bytes: int) -> int:
    """The length of the header's JSON, from the file's first (at most 64) bytes and its size.

    Raises:
        HeaderFault: it is no safetensors file (said what it is, where that can be told), or the length is impossible.
    """
    if start[8:9] != b"{":  # only then: 640 in little endian reads like the start of a pickle
        if what := disguise(start):
            raise HeaderFault("header", None, f"this is {what}")
        if start.startswith(b'{"'):
            raise HeaderFault("header", None, "this is a JSON text, such as a server's error: fetch the file again")
        if start and _TEXT.issuperset(start):
            raise HeaderFault("header", None, f"this is a text that begins with {start[:40].decode()!r}")
    if file_bytes == 0:
        raise HeaderFault("header", None, "the file is empty")
    if file_bytes < 8 or len(start) < 8:
        raise HeaderFault("header", None, f"{file_bytes} bytes are too few for a safetensors file")
    length = int.from_bytes(start[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderFault("header", None, f"the header's length is given as {length:,} bytes; it may have 100,000,000")
    if length > file_bytes - 8:
        raise HeaderFault(
            "header", None, f"the header should have {length:,} bytes, but the file ends after {file_bytes - 8:,}"
        )
    if length < 2:
        raise HeaderFault("header", None, f"a header of {length} bytes cannot be JSON")
    if len(start) > 8 and start[8:9] != b"{":
        raise HeaderFault("header", None, f"the header begins with {start[8:9]!r}, it must begin with '{{'")
    return length


def parse(text: bytes, file_bytes: int, file: str) -> tuple[Header | None, list[HeaderFault]]:
    """The header from its JSON text and the file's size, and everything that is wrong with it."""
    if not text.startswith(b"{"):
        return None, [HeaderFault("header", None, f"the header begins with {text[:1]!r}, it must begin with '{{'")]
    if text.count(b'"data_offsets"') > MAX_TENSORS:  # before a parse that would cost gigabytes
        return None, [HeaderFault("header", None, f"the header lists more than {MAX_TENSORS:,} tensors")]
    data_start = 8 + len(text)
    faults: list[HeaderFault] = []
    if quick := _quick(text, file, data_start):
        tensors, metadata = quick
        complete = True
    else:
        try:
            entries = decode(text, keep_repeated=True)
        except JsonFault as error:
            return None, [HeaderFault("header", None, f"the header {error}")]
        faults += [_repeated(key) for key in entries.repeated] if isinstance(entries, RepeatedKeys) else []
        metadata = _metadata(entries.pop("__metadata__", None), faults)
        tensors = []
        for name, entry in entries.items():
            try:
                tensors.append(_tensor(name, entry, file, data_start))
            except HeaderFault as fault:
                faults.append(fault)
        complete = len(tensors) == len(entries)
    tensors.sort(key=attrgetter("begin", "end"))
    if complete:  # with a tensor left out, its neighbours would be blamed for the hole
        faults.extend(_cover(tensors, data_start, file_bytes))
    return Header({t.name: t for t in tensors}, metadata, data_start, file_bytes), faults


def _quick(text: bytes, file: str, data_start: int) -> tuple[list[TensorInfo], dict[str, str]] | None:
    """Tensors and metadata of a sound header in the usual spelling; None for any other, which `decode` shall read.

    A third of the time of a JSON parser and a fraction of its memory, and as strict: the text is cut into entries
    without a gap, and whatever is not exactly as it should be is left to the other reader and its verdict.
    """
    try:
        parts = _ENTRY.split(text.decode("utf-8"))
    except UnicodeDecodeError:
        return None
    head = _HEAD.fullmatch(parts[0])
    # parts: head, (name, dtype, shape, begin, end, separator, gap), …
    if head is None or len(parts) == 1 or any(parts[7::7]) or not parts[-2].startswith("}"):
        return None
    tensors: list[TensorInfo] = []
    layouts: dict[tuple[str, str], tuple[str, tuple[int, ...], int] | None] = {}
    end, end_text = data_start, "0"
    fields = iter(parts)
    next(fields)
    for name, dtype, shape, begin_text, next_text, _, _ in zip(*[fields] * 7, strict=True):
        key = (dtype, shape)
        if key not in layouts:
            layouts[key] = _layout(dtype, shape)
        layout = layouts[key]
        if layout is None or len(name) > MAX_NAME or not name.isprintable():
            return None
        begin = end if begin_text == end_text else data_start + int(begin_text)  # the usual: one number for both
        end, end_text = data_start + int(next_text), next_text
        if end - begin != layout[2]:
            return None
        tensors.append(TensorInfo(name, layout[0], layout[1], file, begin, end))
    names = set(parts[1::7])
    if len(names) != len(tensors) or "__metadata__" in names:
        return None
    if head[1] is None:
        return tensors, {}
    try:
        metadata = decode(head[1].encode())
    except JsonFault:
        return None
    return (tensors, metadata) if all(isinstance(value, str) for value in metadata.values()) else None


def _layout(dtype: str, shape: str) -> tuple[str, tuple[int, ...], int] | None:
    """Dtype, shape and size in bytes of a tensor as its entry spells them; None where anything is wrong with them."""
    if dtype not in DTYPE_BITS or not _SHAPE.fullmatch(shape):
        return None
    sizes = tuple(map(int, shape.split(","))) if shape else ()
    bits = math.prod(sizes) * DTYPE_BITS[dtype]
    if len(sizes) > MAX_DIMENSIONS or math.prod(d for d in sizes if d) >= _LIMIT or bits % 8:
        return None
    return dtype, sizes, bits // 8


def name_fault(name: str) -> str | None:
    """Why a string cannot be a tensor's name, or None."""
    if not name:
        return "a tensor has an empty name"
    if len(name) > MAX_NAME:
        return f"a tensor's name has {len(name)} characters; {MAX_NAME} are accepted"
    if not name.isprintable() and any(unicodedata.category(character) in _UNFIT for character in name):
        return "a tensor's name holds a control character or half a surrogate pair"
    return None


def _repeated(key: str) -> HeaderFault:
    if key == "__metadata__":
        return HeaderFault("header", None, "the header has __metadata__ twice")
    return HeaderFault("duplicate_tensor", _printable(key), "the header lists this tensor twice")


def _metadata(value: Any, faults: list[HeaderFault]) -> dict[str, str]:
    if value is None:  # absent, or null as some writers have it
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        faults.append(HeaderFault("header", None, "__metadata__ must map strings to strings"))
        return {}
    if isinstance(value, RepeatedKeys):
        faults.append(HeaderFault("header", None, f"__metadata__ has the key {value.repeated[0]!r} twice"))
    return dict(value)


def _tensor(name: str, entry: Any, file: str, data_start: int) -> TensorInfo:
    if problem := name_fault(name):
        raise HeaderFault("name", _printable(name), problem)
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise HeaderFault("header", name, "its entry must be an object with dtype, shape and data_offsets")
    if isinstance(entry, RepeatedKeys):
        raise HeaderFault("header", name, f"its entry has {entry.repeated[0]!r} twice")
    if unknown := sorted(entry.keys() - {"dtype", "shape", "data_offsets"}):
        raise HeaderFault("header", name, f"its entry has an unknown field {unknown[0]!r}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise HeaderFault("dtype", name, f"unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(type(d) is int for d in shape):
        raise HeaderFault("layout", name, f"its shape must be a list of at most {MAX_DIMENSIONS} whole numbers")
    # Zeros are left out of the capped product, so that a huge size cannot hide behind one.
    if any(d < 0 for d in shape) or math.prod(d for d in shape if d) >= _LIMIT:
        raise HeaderFault("layout", name, "its shape is negative or overflows 63 bits")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(o) is int for o in offsets):
        raise HeaderFault("layout", name, "its data_offsets must be two whole numbers")
    begin, end = offsets
    if not 0 <= begin <= end < _LIMIT:
        raise HeaderFault("layout", name, f"its data_offsets [{begin}, {end}] are not in order")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8:
        raise HeaderFault("layout", name, f"{math.prod(shape)} elements of {dtype} do not fill whole bytes")
    if end - begin != bits // 8:
        raise HeaderFault(
            "layout", name, f"{dtype} {shape} takes {bits // 8:,} bytes, but its data_offsets span {end - begin:,}"
        )
    return TensorInfo(name, dtype, tuple(shape), file, data_start + begin, data_start + end)


def _cover(tensors: list[TensorInfo], data_start: int, file_bytes: int) -> list[HeaderFault]:
    """Holes and overlaps of tensors in the order of their data, and a file that ends early or late."""
    faults = []
    reached = data_start
    for tensor in tensors:
        if tensor.begin > reached:
            detail = f"{tensor.begin - reached:,} bytes before it belong to no tensor"
            faults.append(HeaderFault("layout", tensor.name, detail))
        elif tensor.begin < reached:
            faults.append(HeaderFault("layout", tensor.name, "its data overlaps that of the tensor before it"))
        reached = max(reached, tensor.end)
    if reached > file_bytes:
        cut = next(tensor.name for tensor in tensors if tensor.end > file_bytes)
        detail = f"the file is {reached - file_bytes:,} bytes too short ({file_bytes:,} of {reached:,}): fetch it again"
        faults.append(HeaderFault("size", cut, detail))
    elif reached < file_bytes:
        detail = f"the file has {file_bytes - reached:,} bytes after the last tensor"
        faults.append(HeaderFault("size", None, detail))
    return faults


def _printable(name: str) -> str:
    """A name that can be shown and written as JSON, whatever is in it."""
    return name[:80].encode("unicode_escape").decode("ascii") if name_fault(name) else name
