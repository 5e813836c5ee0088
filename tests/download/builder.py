"""Safetensors files byte by byte, also ones that no library would write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What `two_shards` makes.
ONE = "model-00001-of-00002.safetensors"
TWO = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
VECTOR = ("BF16", [4], 8)


def raw(header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header and data; `length` is what its first eight bytes say (default: the truth)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict[str, Any]:
    """A tensor's entry; the shape is by default one of bytes."""
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def shard(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A sound file of zeros: name → dtype, shape, bytes."""
    header, reached = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = entry(reached, reached + size, dtype, shape)
        reached += size
    return raw(header, bytes(reached))


def release(root: Path, shards: dict[str, dict[str, tuple[str, list[int], int]]], **index: Any) -> Path:
    """A folder with these shards, a config, a tokenizer and an index; `index` replaces entries of it."""
    root.mkdir(parents=True, exist_ok=True)
    for file, tensors in shards.items():
        (root / file).write_bytes(shard(tensors))
    placed = {name: file for file, tensors in shards.items() for name in tensors}
    content = {"metadata": {}, "weight_map": placed} | index
    (root / INDEX).write_text(json.dumps(content))
    (root / "config.json").write_text('{"model_type": "llama"}')
    (root / "tokenizer.model").write_bytes(b"")
    return root


def two_shards(root: Path, **index: Any) -> Path:
    """The smallest release that has everything: two shards of two tensors."""
    shards = {ONE: {"a.weight": VECTOR, "b.weight": VECTOR}, TWO: {"c.weight": VECTOR, "d.weight": VECTOR}}
    return release(root, shards, **index)


def edit_index(root: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((root / INDEX).read_text())
    change(index)
    (root / INDEX).write_text(json.dumps(index))


def place(tensor: str, file: object) -> Callable[[Path], None]:
    """Let the index place `tensor` in `file`."""
    return lambda root: edit_index(root, lambda index: index["weight_map"].update({tensor: file}))


def write(name: str, content: bytes | str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
