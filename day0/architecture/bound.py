"""A family bound to one config: every size a number, every layer set a set, every included family's rules in place.

This is what tensors are held against: `match` gives the rule of a name, with the numbers in it, and refuses what no
rule covers.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from day0.architecture.companions import Companion, Grain, grains, weight_names
from day0.architecture.expressions import evaluate
from day0.architecture.family import (
    PLACEHOLDER, Constant, Family, Include, LayoutRule, SizeRule, Target, TensorRule, load_family,
)  # fmt: skip
from day0.architecture.layers import look_up, resolve_layers
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

#: Sizes beyond this are not believed: they only have to stay far from trouble in arithmetic.
LARGEST_SIZE = 1 << 40

#: The number of decoder layers is known by this name in every family.
LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class BoundSegment:
    """`size` rows of the divided dimension in `units` equal pieces that are never cut; `counted` names the units."""

    size: int
    units: int
    counted: str
    replicate: bool


@dataclass(frozen=True, eq=False)
class BoundRule:
    """A tensor rule for one config. `numbers` are what the placeholders may be; None: whatever the checkpoint has."""

    rule: TensorRule
    family: str
    name: str
    shape: tuple[int, ...]
    dim: int | None
    segments: tuple[BoundSegment, ...]
    numbers: Mapping[str, Collection[int] | None]
    targets: Mapping[str, Target]
    optional: bool

    @cached_property
    def slots(self) -> tuple[str | int, ...]:
        """Where the name has a number: the placeholder, or the number that is written there."""
        parts = (part for part in self.name.split(".") if _is_number(part) or PLACEHOLDER.fullmatch(part))
        return tuple(int(part) if _is_number(part) else part[1:-1] for part in parts)

    def named(self, numbers: Mapping[str, int]) -> str:
        return PLACEHOLDER.sub(lambda found: str(numbers[found[1]]), self.name)

    @property
    def count(self) -> int | None:
        """How many such tensors the config calls for; None where it does not say."""
        sizes = [None if held is None else len(held) for held in self.numbers.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)


@dataclass(frozen=True, slots=True)
class Match:
    """A stored tensor, the rule of its weight, the numbers in its name, and what it holds of the weight."""

    tensor: TensorInfo
    rule: BoundRule
    numbers: tuple[int, ...]
    """As `rule.slots` has them."""
    companion: Companion | None
    grains: tuple[Grain, ...]

    def number(self, placeholder: str) -> int | None:
        for slot, number in zip(self.rule.slots, self.numbers, strict=True):
            if slot == placeholder:
                return number
        return None


@dataclass
class BoundFamily:
    """All rules of a family for one config."""

    family: Family
    config: Mapping[str, Any]
    sizes: Mapping[str, int]
    layers: int
    rules: tuple[BoundRule, ...]
    layouts: Mapping[str, LayoutRule]
    constants: Mapping[str, tuple[tuple[Constant, frozenset[int], tuple[int, ...]], ...]]
    """Per layout: each constant, the layers that have it, its shape."""
    tied: bool
    _candidates: dict[str, list[tuple[BoundRule, Companion | None]]] = field(default_factory=dict)
    _fits: dict[tuple[Any, ...], tuple[Grain, ...] | None] = field(default_factory=dict)
    _by_key: dict[str, list[BoundRule]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.rules:
            self._by_key.setdefault(normalised(rule.name)[0], []).append(rule)

    def match(self, tensor: TensorInfo) -> Match:
        """The rule of a tensor.

        Raises:
            InputError: no rule, naming the nearest one; or the header's shape is not what the config says. A tensor
                is never replicated or left out on a guess.
        """
        key, numbers = normalised(tensor.name)
        candidates = self._candidates.get(key)
        if candidates is None:
            candidates = self._candidates[key] = self._rules_for(key)
        wrong: InputError | None = None
        for rule, companion in candidates:
            if not _may_be(rule, numbers):
                continue
            grain = self._grains(tensor, rule, companion)
            if grain is not None:
                return Match(tensor, rule, numbers, companion, grain)
            wrong = wrong or _misshapen(tensor, rule, companion)
        raise wrong or self._unknown(tensor, key, candidates)

    def find(self, tensor: TensorInfo) -> Match | None:
        """The rule of a tensor, or None where none covers its name, its numbers or its shape."""
        try:
            return self.match(tensor)
        except InputError:
            return None

    def covers(self, name: str) -> TensorRule | None:
        """The rule that a name has, whatever its shape; None where there is none."""
        key, numbers = normalised(name)
        for rule, _ in self._rules_for(key):
            if _may_be(rule, numbers):
                return rule.rule
        return None

    def _rules_for(self, key: str) -> list[tuple[BoundRule, Companion | None]]:
        found: list[tuple[BoundRule, Companion | None]] = [(rule, None) for rule in self._by_key.get(key, [])]
        for weight, companion in weight_names(key):
            found += [(rule, companion) for rule in self._by_key.get(weight, [])]
        return found

    def _grains(self, tensor: TensorInfo, rule: BoundRule, companion: Companion | None) -> tuple[Grain, ...] | None:
        fit = (id(rule), companion, tensor.shape, tensor.dtype)
        if fit not in self._fits:
            self._fits[fit] = grains(tensor.shape, rule.shape, tensor.dtype, companion)
        return self._fits[fit]

    def _unknown(
        self, tensor: TensorInfo, key: str, candidates: list[tuple[BoundRule, Companion | None]]
    ) -> InputError:
        where = f"family {self.family.name!r} (configs/families/{self.family.name}.yaml)"
        if candidates:
            rule = candidates[0][0]
            return InputError(
                f"tensor {tensor.name!r} is in {tensor.file}, but by config.json {rule.name!r} is not there for these "
                f"numbers ({_stated(rule)}); one of the two is wrong"
            )
        names = {normalised(rule.name)[0]: rule.name for rule in self.rules}
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
        nearest = f"; the nearest is {names[near[0]]!r}" if near else ""
        return InputError(f"tensor {tensor.name!r} has no rule in {where}{nearest}")


def bind(family: Family, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None = None) -> BoundFamily:
    """Resolve a family for a config; `tensors`, where there are some, tell what the config leaves open.

    Raises:
        InputError: a size, flag or layer list of the config is missing or malformed; names the key.
    """
    keys = {normalised(name)[0] for name in tensors} if tensors is not None else None
    return _Binder(tensors, keys).bind(family, config)


def normalised(name: str) -> tuple[str, tuple[int, ...]]:
    """A tensor's or a rule's name with `#` for every part that is a number or a placeholder, and the numbers."""
    parts = name.split(".")
    numbers = []
    for position, part in enumerate(parts):
        if _is_number(part):
            numbers.append(int(part))
            parts[position] = "#"
        elif part[:1] == "{":
            parts[position] = "#"
    return ".".join(parts), tuple(numbers)


def _is_number(part: str) -> bool:
    return part.isdecimal() and part.isascii() and (part == "0" or part[0] != "0") and len(part) <= 6


class _Binder:
    """Binds a family and all that it includes."""

    def __init__(self, tensors: Mapping[str, TensorInfo] | None, keys: set[str] | None) -> None:
        self.tensors, self.keys = tensors, keys

    def bind(self, family: Family, config: Mapping[str, Any]) -> BoundFamily:
        prefix = self._prefix(family)
        return self._bind(family, config, {"": prefix}, {})

    def _prefix(self, family: Family) -> str:
        """Of the beginnings that names may have, the one that the checkpoint uses."""
        first = family.tensors[0].name if family.tensors else ""
        for prefix in family.prefixes:
            if self.keys is not None and normalised(prefix + first)[0] in self.keys:
                return prefix
        return family.prefixes[0]

    def _bind(
        self,
        family: Family,
        config: Mapping[str, Any],
        rename: Mapping[str, str],
        targets: Mapping[str, Mapping[str, str]],
        skip: tuple[str, ...] = (),
    ) -> BoundFamily:
        sizes = self._sizes(family, config, rename)
        layers = sizes.get(LAYERS, 0)
        sets = resolve_layers(family.layer_sets, config, sizes, layers)
        rules: list[BoundRule] = []
        tied = family.is_tied(config)
        for rule in family.tensors:
            name = _renamed(rule.name, rename)
            if name is None or rule.name in skip or not all(when.holds(config) for when in rule.when):
                continue
            optional = rule.presence != "required" or bool(rule.drop) or (rule.kind == "head" and tied)
            numbers: dict[str, Collection[int] | None] = {}
            for placeholder in rule.placeholders:
                if placeholder == "layer":
                    numbers[placeholder] = frozenset[int]().union(*(sets[chosen] for chosen in rule.layers))
                else:
                    count = family.indices[placeholder]
                    numbers[placeholder] = range(evaluate(count, sizes, placeholder)) if count else None
            if any(held is not None and not held for held in numbers.values()):
                continue  # a model without such layers
            shape = tuple(evaluate(size, sizes, rule.name) for size in rule.shape)
            rules.append(
                BoundRule(
                    rule, family.name, name, shape, rule.split.dim, tuple(_segments(rule, shape, sizes, family)),
                    numbers, _targets(rule, targets, sizes), optional,
                )  # fmt: skip
            )
        constants = {
            layout: tuple(
                (
                    replace_name(constant, targets.get(layout, {})),
                    frozenset[int]().union(*(sets[chosen] for chosen in constant.layers)),
                    tuple(evaluate(size, sizes, constant.name) for size in constant.shape),
                )
                for constant in rule.constants
                if all(when.holds(config) for when in constant.when)
            )
            for layout, rule in family.layouts.items()
        }
        layouts = dict(family.layouts)
        for include in family.include:
            held = self._include(include, config, rename, targets)
            if held is None:
                continue
            rules += held.rules
            layers = layers or held.layers
            tied = tied or held.tied
            for layout, rule_of in held.layouts.items():
                if layout in family.layouts or not family.layouts:
                    layouts[layout] = _merged(family.layouts.get(layout), rule_of, include, layout)
                    constants[layout] = constants.get(layout, ()) + held.constants.get(layout, ())
        return BoundFamily(family, config, sizes, layers, tuple(rules), layouts, constants, tied)

    def _include(
        self,
        include: Include,
        config: Mapping[str, Any],
        rename: Mapping[str, str],
        targets: Mapping[str, Mapping[str, str]],
    ) -> BoundFamily | None:
        nested = look_up(config, include.config) if include.config else None
        if include.config and nested is not None and not isinstance(nested, Mapping):
            raise InputError(f"config.json: {include.config} must be an object")
        if include.optional and self.keys is None and include.config and nested is None:
            return None
        inner = include.rename or {"": ""}
        composed = {old: outer for old, new in inner.items() if (outer := _renamed(new, rename)) is not None}
        names = {
            layout: {old: _renamed(new, targets.get(layout) or {"": ""}) or new for old, new in mapping.items()}
            for layout, mapping in include.targets.items()
        }
        for layout, mapping in targets.items():
            names.setdefault(layout, dict(mapping))
        family = load_family(include.family)
        if include.optional and self.keys is not None and not self._has_some(family, composed):
            return None
        return self._bind(family, {**config, **(nested or {})}, composed, names, include.skip)

    def _has_some(self, family: Family, rename: Mapping[str, str]) -> bool:
        assert self.keys is not None
        names = [_renamed(rule.name, rename) for rule in family.tensors]
        return any(normalised(name)[0] in self.keys for name in names if name is not None)

    def _sizes(self, family: Family, config: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, rule in family.sizes.items():
            sizes[name] = self._size(rule, config, sizes, rename)
        return sizes

    def _size(
        self, rule: SizeRule, config: Mapping[str, Any], sizes: Mapping[str, int], rename: Mapping[str, str]
    ) -> int:
        for key in rule.keys:
            value = look_up(config, key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not rule.least <= value <= LARGEST_SIZE:
                wanted = "a positive integer" if rule.least == 1 else f"an integer of at least {rule.least}"
                raise InputError(f"config.json: {key} is {str(value)[:40]!r}; it must be {wanted}")
            return value
        if rule.tensor and self.tensors is not None:
            name = _renamed(rule.tensor, rename)
            tensor = self.tensors.get(name) if name else None
            if tensor is not None and rule.dim < len(tensor.shape):
                return tensor.shape[rule.dim]
        if rule.default is not None:
            return evaluate(rule.default, sizes, rule.title)
        if rule.tensor:
            raise InputError(f"config.json has no {rule.title}, and there is no tensor {rule.tensor!r} to tell it")
        wanted = "a positive integer" if rule.least == 1 else f"an integer of at least {rule.least}"
        raise InputError(f"config.json: {rule.title} is missing; it must be {wanted}")


def replace_name(constant: Constant, rename: Mapping[str, str]) -> Constant:
    return constant.model_copy(update={"name": _renamed(constant.name, rename) or constant.name}) if rename else constant


def _segments(
    rule: TensorRule, shape: tuple[int, ...], sizes: Mapping[str, int], family: Family
) -> Iterator[BoundSegment]:
    split, dim = rule.split, rule.split.dim
    if dim is None:
        return
    if split.how == "vocab":
        yield BoundSegment(shape[dim], shape[dim], "vocabulary", False)
        return
    if not split.segments:
        assert split.by
        yield _segment(rule, shape[dim], split.by, split.replicate, sizes, family)
        return
    for part in split.segments:
        size = evaluate(part.size, sizes, rule.name)
        yield _segment(rule, size, part.by or part.size, part.replicate, sizes, family)
    total = sum(evaluate(part.size, sizes, rule.name) for part in split.segments)
    if total != shape[dim]:
        raise InputError(
            f"family {family.name!r}: the segments of {rule.name!r} have {total} rows of {shape[dim]}; by the config"
        )


def _segment(
    rule: TensorRule, size: int, by: str, replicate: bool, sizes: Mapping[str, int], family: Family
) -> BoundSegment:
    units = evaluate(by, sizes, rule.name)
    counted = family.sizes[by].title if by in family.sizes else by
    if units == 0 or size % units:
        raise InputError(f"config.json: {rule.name} has {size} rows, which are not {units} equal parts ({counted})")
    return BoundSegment(size, units, counted, replicate)


def _targets(
    rule: TensorRule, rename: Mapping[str, Mapping[str, str]], sizes: Mapping[str, int]
) -> dict[str, Target]:
    found = {}
    for layout, target in rule.targets.items():
        name = _renamed(target.name, rename[layout]) if layout in rename else target.name
        if name is not None:
            shape = tuple(str(evaluate(size, sizes, rule.name)) for size in target.shape) if target.shape else None
            found[layout] = target.model_copy(update={"name": name, "shape": shape})
    return found


def _merged(own: LayoutRule | None, held: LayoutRule, include: Include, layout: str) -> LayoutRule:
    """An including family's layout, with what only the included one says."""
    rename = include.targets.get(layout, {})
    tied = _renamed(held.tied_name, rename) if held.tied_name and rename else held.tied_name
    if own is None:
        return held.model_copy(update={"tied_name": tied})
    return own.model_copy(
        update={
            "engine": own.engine or held.engine,
            "vocab_multiple": max(own.vocab_multiple, held.vocab_multiple),
            "tied_name": own.tied_name or tied,
            "suffixes": {**held.suffixes, **own.suffixes},
        }
    )


def _renamed(name: str, rename: Mapping[str, str]) -> str | None:
    """A name under the longest entry that it begins with; None where none does."""
    if not rename:
        return name
    fitting = [old for old in rename if name.startswith(old)]
    if not fitting:
        return None
    old = max(fitting, key=len)
    return rename[old] + name.removeprefix(old)


def _may_be(rule: BoundRule, numbers: tuple[int, ...]) -> bool:
    slots = rule.slots
    if len(slots) != len(numbers):
        return False
    for slot, number in zip(slots, numbers, strict=True):
        if isinstance(slot, int):
            if slot != number:
                return False
        else:
            held = rule.numbers[slot]
            if held is not None and number not in held:
                return False
    return True


def _stated(rule: BoundRule) -> str:
    parts = []
    for placeholder, held in rule.numbers.items():
        if held is not None:
            listed = sorted(held)
            parts.append(f"{placeholder} is one of {len(listed)}, {listed[0]} to {listed[-1]}")
    return "; ".join(parts) or "it has other numbers"


def _misshapen(tensor: TensorInfo, rule: BoundRule, companion: Companion | None) -> InputError:
    stated = ", ".join(rule.rule.shape)
    if companion and companion.role != "packed":
        return InputError(
            f"{tensor.file}: tensor {tensor.name!r} ({companion.role}) has shape {list(tensor.shape)}, which fits no "
            f"block size of its weight's {list(rule.shape)}; one of the two is wrong"
        )
    return InputError(
        f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)} ({tensor.dtype}), but config.json says "
        f"{list(rule.shape)} ({stated}); one of the two is wrong"
    )
