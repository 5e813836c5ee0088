"""A family bound to one config: every size a number, every layer set a set, every included family's rules in place.

This is what tensors are held against: `match` gives the rule of a name, with the numbers in it, and refuses what no
rule covers.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import contains
from typing import Any, NamedTuple

from day0.architecture.decoder_rules import BoundDecoder
from day0.architecture.family import Family, LayoutRule
from day0.architecture.grains import Grain, grains
from day0.architecture.quantised import Companion, weight_names
from day0.architecture.rules import PLACEHOLDER, Constant, Target, TensorRule
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

#: A number, or a rule's placeholder, as a part of a name after the first.
_NUMBER = re.compile(r"\.(0|[1-9][0-9]{0,5}|\{\w+\})(?=\.|\Z)")

_ANY = range(1_000_000)


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
        return tuple(part[1:-1] if part[0] == "{" else int(part) for part in _NUMBER.split(self.name)[1::2])

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Placeholder → which of the name's numbers it is."""
        return {slot: i for i, slot in enumerate(self.slots) if isinstance(slot, str)}

    @cached_property
    def held(self) -> tuple[Collection[int], ...]:
        """What each number of the name may be."""
        numbers = [(slot,) if isinstance(slot, int) else self.numbers[slot] for slot in self.slots]
        return tuple(_ANY if held is None else held for held in numbers)

    def named(self, numbers: Mapping[str, int]) -> str:
        return PLACEHOLDER.sub(lambda found: str(numbers[found[1]]), self.name)

    @property
    def count(self) -> int | None:
        """How many such tensors the config calls for; None where it does not say."""
        sizes = [None if held is None else len(held) for held in self.numbers.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)


class Match(NamedTuple):
    """A stored tensor, the rule of its weight, the numbers in its name, and what it holds of the weight."""

    tensor: TensorInfo
    rule: BoundRule
    numbers: tuple[int, ...]
    """As `rule.slots` has them."""
    companion: Companion | None
    grains: tuple[Grain, ...]

    def number(self, placeholder: str) -> int | None:
        place = self.rule.places.get(placeholder)
        return None if place is None else self.numbers[place]


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
    decoder: BoundDecoder = field(default_factory=BoundDecoder)
    """What the layers do: attention, routing, positions."""
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

    def rule_named(self, name: str) -> tuple[BoundRule, tuple[int, ...]] | None:
        """The rule that a name has, whatever its shape, and the numbers in it; None where there is none."""
        key, numbers = normalised(name)
        for rule, _ in self._rules_for(key):
            if _may_be(rule, numbers):
                return rule, numbers
        return None

    def _rules_for(self, key: str) -> list[tuple[BoundRule, Companion | None]]:
        found: list[tuple[BoundRule, Companion | None]] = [(rule, None) for rule in self._by_key.get(key, [])]
        for weight, companion in weight_names(key):
            found += [(rule, companion) for rule in self._by_key.get(weight, [])]
        return found

    def _grains(self, tensor: TensorInfo, rule: BoundRule, companion: Companion | None) -> tuple[Grain, ...] | None:
        fit = (id(rule), id(companion), tensor.shape, tensor.dtype)
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


def match_all(bound: BoundFamily, tensors: Mapping[str, TensorInfo]) -> list[Match]:
    """Every tensor with its rule, in the order given; every tensor that the config calls for is there.

    Raises:
        InputError: a tensor has no rule or the wrong shape, or one is missing; names it.
    """
    matches = [bound.match(tensor) for tensor in tensors.values()]
    seen: dict[BoundRule, set[tuple[int, ...]]] = {rule: set() for rule in bound.rules}
    for match in matches:
        if match.companion is None or match.companion.role == "packed":
            seen[match.rule].add(match.numbers)
    for rule, numbers in seen.items():
        _refuse_missing(rule, numbers)
    return matches


def _refuse_missing(rule: BoundRule, seen: set[tuple[int, ...]]) -> None:
    if rule.rule.presence == "any" or (rule.optional and not seen):
        return
    placeholders = [slot for slot in rule.slots if isinstance(slot, str)]
    held = {
        name: rule.numbers[name] or range(1 + max((n[rule.slots.index(name)] for n in seen), default=-1))
        for name in placeholders
    }
    if len(seen) == math.prod(len(numbers) for numbers in held.values()) and (
        seen or None not in rule.numbers.values()
    ):
        return
    for chosen in itertools.product(*(sorted(held[name]) for name in placeholders)):
        numbers = dict(zip(placeholders, chosen, strict=True))
        if tuple(numbers[slot] if isinstance(slot, str) else slot for slot in rule.slots) not in seen:
            raise InputError(f"the checkpoint lacks tensor {rule.named(numbers)!r}, which config.json calls for")
    if not rule.optional:
        raise InputError(f"the checkpoint has no tensor {rule.name!r}, which its family calls for")


def counted_as(rule: BoundRule, mtp: bool) -> str:
    """The kind that its elements are counted under: all of multi-token prediction is `mtp`, but for buffers."""
    own = rule.rule.kind
    return "mtp" if mtp and own != "buffer" else own


def normalised(name: str) -> tuple[str, tuple[int, ...]]:
    """A tensor's or a rule's name with `#` for every part that is a number or a placeholder, and the numbers."""
    parts = _NUMBER.split(name)
    numbers = parts[1::2]
    if "{" in name:
        numbers = [part for part in numbers if part[0] != "{"]
    return ".#".join(parts[::2]), tuple(map(int, numbers))


def _may_be(rule: BoundRule, numbers: tuple[int, ...]) -> bool:
    return len(rule.held) == len(numbers) and all(map(contains, rule.held, numbers))


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
