"""Binds a family to a config: sizes and layer sets resolved, included families taken in under their names here."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from day0.architecture.bound import BoundFamily, BoundRule, BoundSegment, normalised
from day0.architecture.decoder_rules import BoundDecoder, bind_decoder
from day0.architecture.expressions import evaluate
from day0.architecture.family import Family, Include, LayoutRule, SizeRule, load_family
from day0.architecture.keys import look_up
from day0.architecture.layers import resolve_layers
from day0.architecture.rules import Target, TensorRule
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

#: Sizes beyond this are not believed: they only have to stay far from trouble in arithmetic.
LARGEST_SIZE = 1 << 40

#: The number of decoder layers is known by this name in every family.
LAYERS = "layers"


def bind(family: Family, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None = None) -> BoundFamily:
    """Resolve a family for a config; `tensors`, where there are some, tell what the config leaves open.

    Raises:
        InputError: a size, flag or layer list of the config is missing or malformed; names the key.
    """
    return _Binder(tensors).bind(family, config)


class _Binder:
    """Binds a family and all that it includes."""

    def __init__(self, tensors: Mapping[str, TensorInfo] | None) -> None:
        self.tensors = tensors
        self.tied = False

    @functools.cached_property
    def keys(self) -> set[str] | None:
        """The tensors' names without their numbers, for families that must know them."""
        return {normalised(name)[0] for name in self.tensors} if self.tensors is not None else None

    def bind(self, family: Family, config: Mapping[str, Any]) -> BoundFamily:
        self.tied = family.is_tied(config)  # where a nested config says otherwise, the head may still be left out
        return self._bind(family, config, (Include(family=family.name, rename={"": self._prefix(family)}),))

    def _prefix(self, family: Family) -> str:
        """Of the beginnings that names may have, the one that the checkpoint uses."""
        first = family.tensors[0].name if family.tensors else ""
        for prefix in family.prefixes if len(family.prefixes) > 1 else ():
            if self.keys is not None and normalised(prefix + first)[0] in self.keys:
                return prefix
        return family.prefixes[0]

    def _bind(self, family: Family, config: Mapping[str, Any], chain: tuple[Include, ...]) -> BoundFamily:
        """`chain`: the includes that lead from here to the outermost family, the nearest first."""
        sizes = self._sizes(family, config, chain)
        layers = sizes.get(LAYERS, 0)
        stored = functools.partial(self._stored, family, chain)
        sets = resolve_layers(family.layer_sets, config, sizes, layers, stored)
        rules: list[BoundRule] = []
        tied = self.tied or family.is_tied(config)
        for rule in family.tensors:
            name = _here(rule.name, chain)
            if name is None or not all(when.holds(config) for when in rule.when):
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
                    rule,
                    family.name,
                    name,
                    shape,
                    rule.split.dim,
                    tuple(_segments(rule, shape, sizes, family)),
                    numbers,
                    _targets(rule, chain, sizes),
                    optional,
                )
            )
        constants = {
            layout: tuple(
                (
                    constant.model_copy(update={"name": name}),
                    frozenset[int]().union(*(sets[chosen] for chosen in constant.layers)),
                    tuple(evaluate(size, sizes, constant.name) for size in constant.shape),
                )
                for constant in rule.constants
                if (name := _in_layout(constant.name, chain, layout)) and all(w.holds(config) for w in constant.when)
            )
            for layout, rule in family.layouts.items()
        }
        layouts = dict(family.layouts)
        decoder = bind_decoder(family, config, sizes, sets, layers)
        for include in family.include:
            held = self._include(include, config, chain)
            if held is None:
                continue
            rules += held.rules
            decoder += _kept(held.decoder, include)
            layers = layers or held.layers
            tied = tied or held.tied
            for layout, rule_of in held.layouts.items():
                if layout in family.layouts or not family.layouts:
                    layouts[layout] = _merged(layouts.get(layout), rule_of, include, layout)
                    constants[layout] = constants.get(layout, ()) + held.constants.get(layout, ())
        return BoundFamily(family, config, sizes, layers, tuple(rules), layouts, constants, tied, decoder)

    def _include(self, include: Include, config: Mapping[str, Any], chain: tuple[Include, ...]) -> BoundFamily | None:
        nested = look_up(config, include.config) if include.config else None
        if include.config and nested is not None and not isinstance(nested, Mapping):
            raise InputError(f"config.json: {include.config} must be an object")
        if include.optional and self.keys is None and include.config and nested is None:
            return None
        family, chain = load_family(include.family), (include, *chain)
        if (include.optional or include.otherwise) and self.keys is not None and not self._has_some(family, chain):
            if include.optional:
                return None
            other = load_family(include.otherwise) if include.otherwise else family
            family = other if self._has_some(other, chain) else family
        return self._bind(family, {**config, **(nested or {})}, chain)

    def _has_some(self, family: Family, chain: tuple[Include, ...]) -> bool:
        assert self.keys is not None
        names = [_here(rule.name, chain) for rule in family.tensors]
        return any(normalised(name)[0] in self.keys for name in names if name is not None) or any(
            self._has_some(load_family(include.family), (include, *chain)) for include in family.include
        )

    def _stored(self, family: Family, chain: tuple[Include, ...], name: str, layers: frozenset[int]) -> bool:
        """Whether the checkpoint has a tensor of a layer set, by the rules for that set alone."""
        if self.tensors is None:
            return True
        for rule in family.tensors:
            here = _here(rule.name, chain) if rule.layers == (name,) and rule.placeholders == ("layer",) else None
            if here and any(here.replace("{layer}", str(layer)) in self.tensors for layer in layers):
                return True
        return False

    def _sizes(self, family: Family, config: Mapping[str, Any], chain: tuple[Include, ...]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, rule in family.sizes.items():
            sizes[name] = self._size(rule, config, sizes, chain)
        return sizes

    def _size(
        self, rule: SizeRule, config: Mapping[str, Any], sizes: Mapping[str, int], chain: tuple[Include, ...]
    ) -> int:
        for key in rule.keys:
            value = look_up(config, key)
            if value is None or value is False:  # `sliding_window: false`: there is none
                continue
            if rule.length and isinstance(value, list | str):
                value = len(value)
            if isinstance(value, bool) or not isinstance(value, int) or not rule.least <= value <= LARGEST_SIZE:
                wanted = "a positive integer" if rule.least == 1 else f"an integer of at least {rule.least}"
                raise InputError(f"config.json: {key} is {str(value)[:40]!r}; it must be {wanted}")
            return value
        if rule.tensor and self.tensors is not None:
            name = _here(rule.tensor, chain)
            tensor = self.tensors.get(name) if name else None
            if tensor is not None and rule.dim < len(tensor.shape):
                return tensor.shape[rule.dim]
        if rule.default is not None:
            return evaluate(rule.default, sizes, rule.title)
        if rule.tensor:
            raise InputError(f"config.json has no {rule.title}, and there is no tensor {rule.tensor!r} to tell it")
        wanted = "a positive integer" if rule.least == 1 else f"an integer of at least {rule.least}"
        raise InputError(f"config.json: {rule.title} is missing; it must be {wanted}")


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


def _targets(rule: TensorRule, chain: tuple[Include, ...], sizes: Mapping[str, int]) -> dict[str, Target]:
    found = {}
    for layout, target in rule.targets.items():
        name = _in_layout(target.name, chain, layout)
        if name is not None:
            shape = tuple(str(evaluate(size, sizes, rule.name)) for size in target.shape) if target.shape else None
            numbers = {
                field: str(evaluate(expression, sizes, rule.name))
                for field in ("halves", "first", "least")
                if (expression := getattr(target, field)) is not None
            }
            found[layout] = target.model_copy(update={"name": name, "shape": shape, **numbers})
    return found


def _kept(decoder: BoundDecoder, include: Include) -> BoundDecoder:
    """An included family's decoder rules without those that the including one skips."""
    skipped = {name: () for name in ("attention", "routing", "position") if name in include.skip}
    return dataclasses.replace(decoder, **skipped)


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
            "dtypes": {**held.dtypes, **own.dtypes},
        }
    )


def _here(name: str, chain: tuple[Include, ...]) -> str | None:
    """What the outermost family calls an included one's tensor; None where it is left out on the way."""
    for include in chain:
        renamed = None if name in include.skip else _renamed(name, include.rename)
        if renamed is None:
            return None
        name = renamed
    return name


def _in_layout(name: str, chain: tuple[Include, ...], layout: str) -> str | None:
    """What the outermost family's layout calls an included one's tensor; None where it has none."""
    for include in chain:
        renamed = _renamed(name, include.targets.get(layout, {}))
        if renamed is None:
            return None
        name = renamed
    return name


def _renamed(name: str, rename: Mapping[str, str]) -> str | None:
    """A name under the longest entry that it begins with; None where none does."""
    if not rename:
        return name
    fitting = [old for old in rename if name.startswith(old)]
    if not fitting:
        return None
    old = max(fitting, key=len)
    return rename[old] + name.removeprefix(old)
