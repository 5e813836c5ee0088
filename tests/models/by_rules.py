"""A checkpoint made of a family's own rules, for configs of which no checkpoint is at hand. Sparse, without data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, BoundRule
from day0.architecture.family import find_family
from day0.architecture.rules import PLACEHOLDER
from day0.checkpoint import Checkpoint, open_checkpoint
from tests.models.safetensors_file import in_writing_order, write_holes

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
    write_holes(root / "model.safetensors", in_writing_order(tensors))
    return open_checkpoint(root)
