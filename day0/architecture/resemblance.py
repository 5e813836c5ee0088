"""Which family describes a model whose type none names: the one that explains all of it, or none.

Releases often rename a known architecture. A family is taken for an unknown `model_type` only on evidence: its rules
explain every tensor of the checkpoint, names and shapes; or, where there is only a config, it finds every key that it
needs and reads every key that looks like a size. A model that nothing explains whole is refused: a mixture of experts
counted as a dense model would be a wrong number, and a wrong number is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, match_all, normalised
from day0.architecture.family import Family, all_families, find_family, is_known
from day0.architecture.unread import foreign_part, keys_of, keys_read, unread_sizes
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

#: Activations of an MLP without a gate, which has two matrices instead of three. The families whose MLP is such, or
#: has a gate with one of these, say so under other keys.
_UNGATED = re.compile(r"gelu|relu|quick_gelu|tanh")


@dataclass(frozen=True)
class Recognised:
    """The family of a model, and, where its `model_type` is in none, on what evidence it was chosen."""

    family: Family
    evidence: str | None = None
    sure: bool = True
    """Every tensor is explained; by the config alone a choice is not sure."""


def recognise(raw: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None = None) -> Recognised:
    """The family that describes a model.

    Raises:
        InputError: no family names its `model_type` and none explains it whole; says what comes nearest and what of
            the model that leaves unexplained.
    """
    if is_known(raw):
        return Recognised(find_family(raw))
    fitting: list[BoundFamily] = []
    others: list[tuple[int, str, BoundFamily]] = []
    named = _by_name(tensors or {})
    for family in all_families():
        try:
            bound = bind(family, raw, tensors)
        except InputError:
            continue
        left, first = _unexplained(raw, bound, tensors, named)
        if left:
            others.append((left, first, bound))
        else:
            fitting.append(bound)
    if not fitting:
        come = "none can be read from this config"
        if others:
            least = min(left for left, _, _ in others)
            left, first, near = max((held for held in others if held[0] == least), key=lambda o: _likeness(raw, o[2]))
            come = f"the nearest is {near.family.name!r}, which leaves {left:,} unexplained, first {first}"
        raise InputError(
            f"model_type {str(raw.get('model_type'))[:60]!r} has no family description: {come}; describe it in "
            f"configs/families/"
        )
    chosen = max(fitting, key=lambda bound: _likeness(raw, bound))
    name = chosen.family.name
    if tensors is not None:
        return Recognised(chosen.family, f"all {len(tensors):,} tensors are those of family {name!r}")
    alike = [bound.family.name for bound in fitting if bound is not chosen]
    also = f"; so do {', '.join(alike[:4])}" if alike else ""
    return Recognised(chosen.family, f"by its config alone family {name!r} explains every size{also}", sure=False)


def _by_name(tensors: Mapping[str, TensorInfo]) -> dict[str, list[TensorInfo]]:
    """Tensors that differ in their names' numbers alone, together: families know most names or none of them."""
    found: dict[str, list[TensorInfo]] = {}
    for tensor in tensors.values():
        found.setdefault(normalised(tensor.name)[0], []).append(tensor)
    return found


def _unexplained(
    raw: Mapping[str, Any],
    bound: BoundFamily,
    tensors: Mapping[str, TensorInfo] | None,
    named: Mapping[str, list[TensorInfo]],
) -> tuple[int, str]:
    """How much of a model a family does not explain, and the first of it: keys; or tensors that it has no rule for, and
    rules without a tensor."""
    part = foreign_part(raw, bound)
    if tensors is None:
        keys = [*unread_sizes(raw, bound), *_ungated(raw)]
        left = [f"key {key}" for key in keys] or ([part] if part else [])
        return len(left), left[0] if left else ""
    rules = {key: bound.rule_named(alike[0].name) for key, alike in named.items()}
    unknown = [named[key] for key, rule in rules.items() if rule is None]
    seen = {normalised(rule[0].name)[0] for rule in rules.values() if rule}
    lacking = {key for rule in bound.rules if not rule.optional and (key := normalised(rule.name)[0]) not in seen}
    if unknown:
        return sum(map(len, unknown)) + len(lacking), f"tensor {unknown[0][0].name!r}"
    try:
        match_all(bound, tensors)
    except InputError as error:
        return 1 + len(lacking), str(error)
    return (1, part) if part else (0, "")


def _ungated(raw: Mapping[str, Any]) -> list[str]:
    text = raw.get("text_config")
    named = {**raw, **text} if isinstance(text, Mapping) else raw
    return [
        f"{key} {str(named[key])[:40]}, of an MLP without a gate"
        for key in ("hidden_act", "activation_function")
        if _UNGATED.match(str(named.get(key)))
    ]


def _likeness(raw: Mapping[str, Any], bound: BoundFamily) -> tuple[bool, int, int, str]:
    """Of families that all explain a model: first that which its class is called after, then that which reads most of
    its config, then that which looks for least that is not there."""
    listed = raw.get("architectures")
    called = (
        {re.sub(r"For\w+$|Model$", "", str(name)).lower() for name in listed} if isinstance(listed, list) else set()
    )
    types = {model_type.replace("_", "") for model_type in bound.family.model_types}
    read, held = keys_read(bound.family), keys_of(raw)
    return bool(called & types), len(read & held), -len(read - held), bound.family.name
