"""Writes true safetensors files for tests. Untrue ones: tests/download/builder.py."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from day0.safetensors_header import DTYPE_BITS

Described = Mapping[str, tuple[str, Sequence[int]]]
"""Name → dtype and shape."""

#: The format's own library writes a file's tensors by dtype, the wider first, then by name.
WRITING_ORDER = (
    "U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E5M2FNUZ", "F8_E4M3FNUZ",
    "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8", "U8", "F6_E3M2", "F6_E2M3", "F4", "BOOL",
)  # fmt: skip


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * DTYPE_BITS[dtype] // 8


def in_writing_order(tensors: Described) -> Described:
    """The tensors as the format's own library orders them."""
    return dict(sorted(tensors.items(), key=lambda item: (WRITING_ORDER.index(item[1][0]), item[0])))


def header(tensors: Described) -> tuple[bytes, int]:
    """What stands before the data of these tensors in this order; and how many bytes of data there are."""
    entries = ['"__metadata__":{"format":"pt"}']
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + nbytes(dtype, shape)
        sizes = ",".join(map(str, shape))
        # By hand: a published checkpoint has 200,000 of them.
        entries.append(f'{json.dumps(name)}:{{"dtype":"{dtype}","shape":[{sizes}],"data_offsets":[{begin},{end}]}}')
    text = ("{" + ",".join(entries) + "}").encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, end


def write_file(path: Path, tensors: Described, data: Iterable[bytes]) -> None:
    """A file of these tensors, with their bytes one after another."""
    head, size = header(tensors)
    with path.open("wb") as file:
        file.write(head)
        assert sum(map(file.write, data)) == size


def random_bytes(size: int) -> Iterator[bytes]:
    """So many, a few MB at a time."""
    while size:
        size -= len(block := os.urandom(min(size, 16 << 20)))
        yield block


def write_holes(path: Path, tensors: Described) -> None:
    """A file as long as it should be that has no data: holes, which read as zeros and take no space."""
    head, size = header(tensors)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
