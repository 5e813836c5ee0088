"""Puts a resharded checkpoint together again by what its ranks.json says: an independent reading of that record."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from day0.safetensors_header import DTYPE_BITS, read_header

Array = np.ndarray[Any, Any]
Box = list[tuple[int, int]]


def converted(folder: Path) -> set[str]:
    """The source tensors whose values were changed."""
    record = json.loads((folder / "ranks.json").read_text())
    sources = (source for entry in record["tensors"] for source in entry["sources"])
    return {
        s["tensor"]
        for s in sources
        if s["tensor"] and s["conversion"] != "none" and not s["conversion"].startswith("transpose")
    }


def merged(folder: Path) -> dict[str, tuple[str, Array]]:
    """Every source tensor that was not converted (dtype, values as raw elements), from the ranks that hold parts of it.

    Fails where two ranks disagree about an element that both hold, or where an element is held by none.
    """
    record = json.loads((folder / "ranks.json").read_text())
    changed = converted(folder)
    turned: set[str] = set()
    parts: dict[str, list[tuple[str, Box, Array]]] = {}
    for entry in record["tensors"]:
        data = read_header(folder / entry["file"], entry["file"]).tensors[entry["tensor"]]
        with (folder / entry["file"]).open("rb") as file:
            file.seek(data.begin)
            raw = np.frombuffer(file.read(data.nbytes), element(entry["dtype"]))
        at = 0
        for source, box, piece in _pieces(entry["sources"], raw):
            at += piece.size
            if source["tensor"] is None:
                assert source["conversion"] != "zeros" or not piece.any()
            elif source["tensor"] not in changed:
                parts.setdefault(source["tensor"], []).append((entry["dtype"], box, piece))
                if source["conversion"].startswith("transpose"):
                    turned.add(source["tensor"])
        assert at == raw.size, f"{entry['tensor']}: its record does not cover it"
    whole = {name: _put_together(name, held) for name, held in parts.items()}
    return {n: (dtype, values.swapaxes(-1, -2) if n in turned else values) for n, (dtype, values) in whole.items()}


def _pieces(sources: list[dict[str, Any]], raw: Array) -> Iterator[tuple[dict[str, Any], Box, Array]]:
    """The parts of a written tensor, one after another; neighbours with an axis are joined along that dimension."""
    at = 0
    for (_, axis), group in itertools.groupby(sources, lambda source: (source["tensor"], source.get("axis"))):
        listed = list(group)
        boxes = [[(first, last) for first, last in source["slice"]] for source in listed]
        shapes = [[last - first for first, last in box] for box in boxes]
        if listed[0]["conversion"].startswith("constant"):
            yield listed[0], [], raw[at:]
            return
        if axis is None:
            for source, box, shape in zip(listed, boxes, shapes, strict=True):
                yield source, box, raw[at : at + math.prod(shape)].reshape(shape)
                at += math.prod(shape)
            continue
        joint = [sum(shape[axis] for shape in shapes) if dim == axis else n for dim, n in enumerate(shapes[0])]
        values = raw[at : at + math.prod(joint)].reshape(joint)
        at += math.prod(joint)
        ends = list(itertools.accumulate(shape[axis] for shape in shapes))
        for source, box, piece in zip(listed, boxes, np.split(values, ends[:-1], axis), strict=True):
            yield source, box, piece


def _put_together(name: str, parts: list[tuple[str, Box, Array]]) -> tuple[str, Array]:
    dtype = parts[0][0]
    shape = [max(box[dim][1] for _, box, _ in parts) for dim in range(len(parts[0][1]))]
    whole = np.zeros(shape, element(dtype))
    held = np.zeros(shape, bool)
    for other, box, values in parts:
        assert other == dtype
        place = tuple(slice(first, last) for first, last in box)
        assert (whole[place] == values)[held[place]].all(), f"{name}: two ranks hold different values"
        whole[place], held[place] = values, True
    assert held.all(), f"{name}: an element is held by no rank"
    return dtype, whole


def element(dtype: str) -> np.dtype[Any]:
    """Raw elements of a dtype: unsigned integers of its size."""
    return np.dtype(f"u{max(1, DTYPE_BITS[dtype] // 8)}")
