"""A checkpoint made of a family's own rules, for configs of which no checkpoint is at hand. Sparse, without data."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, BoundRule
from day0.architecture.family import PLACEHOLDER, find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from day0.safetensors_header import DTYPE_BITS

Stored = Mapping[str, tuple[str, tuple[int, ...]]]


def rule_tensors(bound: BoundFamily) -> dict[str, tuple[BoundRule, tuple[int, ...]]]:
    """Name → its rule and shape, of every tensor that the config calls for.

    A placeholder that counts as many as the checkpoint has counts one. Left out is what a checkpoint may lack, and the
    head where it is the embedding.
    """
    found: dict[str, tuple[BoundRule, tuple[int, ...]]] = {}
    for rule in bound.rules:
        if rule.rule.presence == "any" or rule.rule.drop or (rule.rule.kind == "head" and bound.tied):
            continue
        slots = [slot for slot in rule.slots if isinstance(slot, str)]
        held = [sorted(rule.numbers[slot] or (0,)) for slot in slots]
        template = PLACEHOLDER.sub("%d", rule.name)
        for numbers in itertools.product(*held):
            found[template % numbers] = rule, rule.shape
    return found


def plain(config: Mapping[str, Any], dtype: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    """All tensors that a config calls for, in one dtype."""
    bound = bind(find_family(config), config)
    return {name: (dtype, shape) for name, (_, shape) in rule_tensors(bound).items()}


def write_sparse(root: Path, config: Mapping[str, Any], tensors: Stored) -> Checkpoint:
    """A folder with a config and one file of these tensors."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(config))
    entries, end = {}, 0
    for name, begin, nbytes in _placed(tensors):
        dtype, shape = tensors[name]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + nbytes]}
        end = begin + nbytes
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with (root / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return open_checkpoint(root)


def _placed(tensors: Stored) -> Iterator[tuple[str, int, int]]:
    at = 0
    for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (-DTYPE_BITS[item[1][0]], item[0])):
        nbytes = math.prod(shape) * DTYPE_BITS[dtype] // 8
        yield name, at, nbytes
        at += nbytes
