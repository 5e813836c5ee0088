"""`ranks.json`: which rank holds what, and for every written tensor where it is from. One line a tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any

from tasks.reshard.writes import Origin, TargetFile, WritePlan

RANKS = "ranks.json"


def ranks_json(plan: WritePlan, source: str, errors: Mapping[str, Mapping[str, float]]) -> Iterator[bytes]:
    """The file in pieces: a large model has a million lines.

    Args:
        source: digest of the source's index and hashes.
        errors: what conversions lose, by source tensor.
    """
    files: dict[int, list[str]] = {}
    for file in plan.files:
        files.setdefault(file.rank, []).append(file.name)
    ranks = [{"rank": r.rank, "tp": r.tp, "pp": r.pp, "ep": r.ep, "files": files.get(r.rank, [])} for r in plan.ranks]
    head = {
        "layout": plan.layout,
        "engine": plan.engine,
        "source": source,
        "sizes": {"tp": plan.tp, "pp": plan.pp, "ep": plan.ep},
        "dropped": [dropped.to_json() for dropped in plan.dropped],
        "errors": dict(sorted(errors.items())),
    }
    fields = [f" {json.dumps(key)}: {_text(value)}" for key, value in head.items()]
    yield ("{\n" + ",\n".join(fields)).encode()
    yield (',\n "ranks": [\n  ' + ",\n  ".join(json.dumps(rank) for rank in ranks) + "\n ]").encode()
    yield b',\n "tensors": [\n'
    first = True
    for file in plan.files:
        lines = ",\n".join(_lines(file))
        if lines:
            yield (lines if first else f",\n{lines}").encode()
            first = False
    yield b"\n ]\n}\n"


def _lines(file: TargetFile) -> Iterator[str]:
    """A line a tensor. Put together by hand: a large model has a million of them."""
    head, name = f'  {{"rank": {file.rank}, "tensor": ', quoted(file.name)
    for t in file.tensors:
        sources = ", ".join(map(_source, t.origins))
        yield (
            f'{head}{quoted(t.name)}, "file": {name}, "dtype": "{t.dtype}", '
            f'"shape": {_array(t.shape)}, "sources": [{sources}]}}'
        )


def _source(origin: Origin) -> str:
    tensor = "null" if origin.tensor is None else quoted(origin.tensor)
    joined = "" if origin.axis is None else f', "axis": {origin.axis}'
    conversion = quoted(origin.conversion)
    return f'{{"tensor": {tensor}, "slice": {_array(origin.slice)}, "conversion": {conversion}{joined}}}'


@lru_cache(1 << 12)
def _array(values: tuple[Any, ...]) -> str:
    """A shape or a slice: those of a model's experts are the same."""
    return json.dumps(values)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
