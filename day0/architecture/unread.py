"""Keys of a config that look like sizes and that nothing here has read.

A release may bring a part that its family's description does not know: a key for it then stands in the config, and
numbers made without it may be wrong. So every key that a family reads is known, and of all others those that carry
whole numbers, or something for each layer, are reported, unless configs/config-keys.yaml or the family says that they
change no size. Those that are known to stand for a part that changes everything are refused.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from day0.architecture.bound import BoundFamily
from day0.architecture.family import Family, load_family
from day0.architecture.keys import When, look_up
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
    return tuple(f"{path} {shown}" for path, shown in _unread(raw, bound, 2))


def _unread(raw: Mapping[str, Any], bound: BoundFamily, least: int) -> Iterator[tuple[str, str]]:
    """By path, whatever the order in the file; numbers from `least` on."""
    read = frozenset(_read(bound.family))
    leaves = _leaves(raw, "", 0, least, bound.layers)
    yield from sorted((path, shown) for path, shown in leaves if not _known(path, read))


def keys_read(family: Family) -> frozenset[str]:
    """Every key that a family reads, wherever in a config it stands."""
    return frozenset(key.rpartition(".")[2] for key in _read(family) if key not in family.unused)


def keys_of(raw: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Every key of a config, wherever it stands."""
    below = [keys_of(held, depth + 1) for held in raw.values() if isinstance(held, Mapping) and depth < DEEPEST]
    return frozenset(raw).union(*below)


#: What a key that nothing reads may stand for, where it would change the numbers wholly.
_FOREIGN = (
    (re.compile(r"(^|_)(experts?|moe)(_|$)"), "a mixture of experts"),
    (re.compile(r"^(kv|q)_lora_rank$|^qk_(rope|nope)_head_dim$"), "multi-head latent attention"),
    (re.compile(r"^index_(topk|n_heads|head_dim)$|^compress_ratios$"), "sparse attention with an indexer"),
    (re.compile(r"mamba|(^|_)ssm(_|$)|^linear_(attn|conv|key|value|num)|^hybrid_"), "recurrent layers"),
    (re.compile(r"^sliding_window$|^attention_chunk_size$|^no_rope_layers$|^global_head_dim$"), "windowed attention"),
    (re.compile(r"^num_nextn_predict_layers$|^mtp_|^num_mtp"), "multi-token prediction"),
    (re.compile(r"^block_configs$|^layers_block_type$"), "layers of different shapes"),
    (re.compile(r"^cross_attention"), "an encoder"),
    (re.compile(r"^hidden_size_per_layer_input$"), "embeddings that each layer has of its own"),
    (re.compile(r"^num_kv_shared_layers$"), "layers that share one cache"),
)
#: A place in a list, in a key: `merge_kernel_size.0`.
_PLACE = re.compile(r"\.\d+(?=\.|$)")
_TOWER = re.compile(r"(^|_)(text|vision|audio|speech|thinker|talker)_config$")


def foreign_part(raw: Mapping[str, Any], bound: BoundFamily) -> str | None:
    """A part that a config has and its family does not describe, such as `a mixture of experts (num_experts 128)`."""
    read = frozenset(_read(bound.family))
    for key, value in raw.items():
        if _TOWER.search(key) and isinstance(value, Mapping) and value and not _below(key, read, bound.family):
            return f"a part of its own ({key})"
    described = {"full_attention", *_layer_types(bound.family)}
    for kinds in (look_up(raw, "layer_types"), look_up(raw, "text_config.layer_types")):
        for kind in kinds if isinstance(kinds, list) else ():
            if kind not in described:
                return f"layers of another kind (layer_types: {str(kind)[:40]})"
    for path, shown in _unread(raw, bound, 1):
        name = path.split(".")[-1]
        for pattern, meaning in _FOREIGN:
            if pattern.search(name):
                return f"{meaning} ({path} {shown})"
    return None


def _below(key: str, read: frozenset[str], family: Family) -> bool:
    """Whether a family reads anything of a nested object."""
    return any(path.startswith(f"{key}.") for path in read) or key in set(_nested(family))


def _layer_types(family: Family) -> Iterator[object]:
    """The kinds of layers that a family says the attention of."""
    names = [name for rule in family.attention for name in rule.layers if name in family.layer_sets]
    for name in names:  # grows
        layer_set = family.layer_sets[name]
        names += [base for base in (*layer_set.of, *layer_set.but) if base in family.layer_sets and base not in names]
        keys = (layer_set.key,) if isinstance(layer_set.key, str) else layer_set.key or ()
        if "layer_types" in keys:
            yield from layer_set.values or ()
    for include in family.include:
        yield from _layer_types(load_family(include.family))
        if include.otherwise:
            yield from _layer_types(load_family(include.otherwise))


def _nested(family: Family) -> Iterator[str]:
    for include in family.include:
        if include.config:
            yield include.config
        yield from _nested(load_family(include.family))


def _known(path: str, read: frozenset[str]) -> bool:
    parts = path.split(".")
    # A nested config is read over what stands around it, so a key counts as read wherever it stands.
    if any(".".join(parts[i:]) in read for i in range(len(parts))):
        return True
    if any(key.endswith(".*") and path.startswith(key[:-1]) for key in read):
        return True
    return any(fnmatch.fnmatchcase(path if "." in pattern else parts[-1], pattern) for pattern in config_keys())


def _leaves(value: Mapping[str, Any], prefix: str, depth: int, least: int, layers: int) -> Iterator[tuple[str, str]]:
    """Paths of what looks like a size: a whole number from `least` on, a list of such numbers or of objects, or a list
    or string with an entry for each layer."""
    for key, held in value.items():
        path = f"{prefix}{key}"
        if type(held) is int and held >= least:
            yield path, str(held) if held < 10**12 else "of many digits"
        elif isinstance(held, list) and held and (_counts(held) or len(held) == layers > 1):
            yield path, f"(a list of {len(held)})"
        elif isinstance(held, str) and len(held) == layers > len(set(held)) * 4:  # a letter a layer: M-M-M*-
            yield path, f"(a string of {len(held)})"
        elif isinstance(held, Mapping) and depth < DEEPEST:
            yield from _leaves(held, f"{path}.", depth + 1, least, layers)


def _counts(listed: list[Any]) -> bool:
    return all(type(item) is int for item in listed) or any(isinstance(item, Mapping) for item in listed)


def _read(family: Family) -> Iterator[str]:
    """Every key that a family, or one that it includes, looks at; of a list that it looks into, the list's."""
    yield from (_PLACE.sub("", key) for key in _looked_at(family))


def _looked_at(family: Family) -> Iterator[str]:
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
        yield from _looked_at(load_family(include.family))
        if include.otherwise:
            yield from _looked_at(load_family(include.otherwise))


def _of(conditions: tuple[When, ...]) -> Iterator[str]:
    yield from (when.key for when in conditions)
