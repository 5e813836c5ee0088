"""Keys of a config that look like sizes and that nothing here has read.

A release may bring a part that its family's description does not know: a key for it then stands in the config, and
numbers made without it may be wrong. So every key that a family reads is known, and of all others those that carry
whole numbers are reported, unless configs/config-keys.yaml says that they change no size.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from day0.architecture.bound import BoundFamily
from day0.architecture.family import Family, load_family
from day0.architecture.keys import When
from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.home import configs

#: Nested objects deeper than this are no config of a model.
DEEPEST = 8


class ConfigKeys(Frozen):
    """The file configs/config-keys.yaml: keys that change neither a tensor, nor a cache, nor the work of a step."""

    harmless: dict[str, tuple[str, ...]]
    """Why → patterns of keys, `*` for anything; with a dot they are matched from the outermost object on."""


@functools.lru_cache(maxsize=1)
def config_keys() -> tuple[str, ...]:
    """All patterns of harmless keys."""
    listed = load_config(configs() / "config-keys.yaml", ConfigKeys).harmless
    return tuple(pattern for patterns in listed.values() for pattern in patterns)


def unread_sizes(raw: Mapping[str, Any], bound: BoundFamily) -> tuple[str, ...]:
    """Keys, with their values, that look like sizes and were not read: `num_memory_slots 64`."""
    read = frozenset(_read(bound.family))
    return tuple(sorted(f"{path} {shown}" for path, shown in _leaves(raw, "", 0) if not _known(path, read)))


def _known(path: str, read: frozenset[str]) -> bool:
    parts = path.split(".")
    # A nested config is read over what stands around it, so a key counts as read wherever it stands.
    if any(".".join(parts[i:]) in read for i in range(len(parts))):
        return True
    if any(key.endswith(".*") and path.startswith(key[:-1]) for key in read):
        return True
    return any(fnmatch.fnmatchcase(path if "." in pattern else parts[-1], pattern) for pattern in config_keys())


def _leaves(value: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Paths of what looks like a size: a whole number of at least 2, or a list of whole numbers."""
    for key, held in value.items():
        path = f"{prefix}{key}"
        if type(held) is int and held > 1:
            yield path, str(held) if held < 10**12 else "of many digits"
        elif isinstance(held, list) and held and all(type(item) is int for item in held):
            yield path, f"(a list of {len(held)})"
        elif isinstance(held, Mapping) and depth < DEEPEST:
            yield from _leaves(held, f"{path}.", depth + 1)


def _read(family: Family) -> Iterator[str]:
    """Every key that a family, or one that it includes, looks at."""
    yield family.tied
    yield from family.unused
    for size in family.sizes.values():
        yield from size.keys
    for layer_set in family.layer_sets.values():
        if layer_set.key is not None:
            yield from (layer_set.key,) if isinstance(layer_set.key, str) else layer_set.key
    for rule in family.tensors:
        yield from _of(rule.when)
    for layer_rule in family.rules:
        yield from _of(layer_rule.when)
    for routing in family.routing:
        for fact in routing.facts.values():
            yield from (fact.key,) if isinstance(fact.key, str) else fact.key
    for position in family.position:
        yield from (f"{key}.*" for key in position.parameters)
        yield from position.theta
    for layout in family.layouts.values():
        for constant in layout.constants:
            yield from _of(constant.when)
    for include in family.include:
        yield from _read(load_family(include.family))
        if include.otherwise:
            yield from _read(load_family(include.otherwise))


def _of(conditions: tuple[When, ...]) -> Iterator[str]:
    yield from (when.key for when in conditions)
