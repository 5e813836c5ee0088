"""What a family says of its layers beside their tensors: attention, routing to experts, positions.

Written in a family's file as `attention`, `routing` and `position` (configs/families/README.md), and bound to a config
together with its tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from day0.architecture.expressions import evaluate, words
from day0.architecture.keys import When, look_up
from day0.architecture.layers import believe_layers
from day0.artifacts.base import Frozen
from day0.errors import InputError

AttentionKind = Literal[
    "full", "sliding", "chunked", "latent", "sparse_latent", "compressed", "block_sparse", "delta_net", "kimi_delta",
    "mamba2", "lightning", "cross",
]  # fmt: skip
Scalar = str | int | float | bool


class FactRule(Frozen):
    """A fact that the config states under a key; `default` where it does not, which is the model code's own."""

    key: str | tuple[str, ...] = ()
    default: Scalar | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    def of(self, config: Mapping[str, Any]) -> Scalar | None:
        """The value.

        Raises:
            InputError: it is an object or a list.
        """
        for key in self.keys:
            value = look_up(config, key)
            if value is None:
                continue
            if not isinstance(value, str | int | float | bool):
                raise InputError(f"config.json: {key} is {str(value)[:40]}; it must be one value")
            return value
        return self.default


class LayerRule(Frozen):
    """What holds for some layers. `layers` are layer sets, together; or `count`, for modules that are not numbered as
    layers (multi-token prediction in modules of its own)."""

    layers: tuple[str, ...] = ("all",)
    count: str | None = None
    when: tuple[When, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        """`layers: name` and `when: key` are short for lists."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if isinstance(value.get("layers"), str):
            value["layers"] = (value["layers"],)
        if (when := value.get("when")) is not None:
            listed = when if isinstance(when, list | tuple) else [when]
            value["when"] = tuple({"key": item} if isinstance(item, str) else item for item in listed)
        return value

    def expressions(self) -> Iterator[str]:
        """All that is computed from the family's sizes."""
        if self.count is not None:
            yield self.count

    def chosen(self, sets: Mapping[str, frozenset[int]], sizes: Mapping[str, int], layers: int) -> frozenset[int]:
        """The numbers of the layers; modules that are counted apart come after all decoder layers."""
        if self.count is not None:
            count = evaluate(self.count, sizes, "count")
            believe_layers(layers + count, f"the count {self.count!r}")
            return frozenset(range(layers, layers + count))
        return frozenset[int]().union(*(sets[name] for name in self.layers))


class AttentionRule(LayerRule):
    """The attention of some layers. `sizes` are what its class in day0/architecture/attention/ takes."""

    kind: AttentionKind
    sizes: dict[str, str]

    def expressions(self) -> Iterator[str]:
        yield from super().expressions()
        yield from self.sizes.values()


class RoutingRule(LayerRule):
    """How tokens are routed to experts."""

    experts: str
    per_token: str
    shared: str | None = None
    """How many experts every token passes besides."""
    facts: dict[str, FactRule] = Field(default_factory=dict)
    """`scoring`, `groups`, `groups_per_token`, `scaling`, `normalised`, `bias`, …"""

    def expressions(self) -> Iterator[str]:
        yield from super().expressions()
        yield from (text for text in (self.experts, self.per_token, self.shared) if text)


class PositionRule(LayerRule):
    """How some layers know positions."""

    scheme: Literal["rope", "mrope", "none", "learned"]
    parameters: tuple[str, ...] = ("rope_parameters", "rope_scaling")
    """Where the config has the scheme's parameters: the first of these that it has."""
    theta: tuple[str, ...] = ("rope_theta",)
    """Keys of the base, where the parameters lack it."""
    dim: str | None = None
    """How many of a head's dimensions are rotated."""
    factor: FactRule | None = None
    """Where the config says which share of `dim` it is; none: all."""

    @property
    def factor_key(self) -> str:
        """What an error calls the share."""
        return self.factor.keys[0] if self.factor and self.factor.keys else "the rotated share"

    def expressions(self) -> Iterator[str]:
        yield from super().expressions()
        if self.dim:
            yield self.dim


class DecoderRules(Frozen):
    """The part of a family that says what its layers do."""

    attention: tuple[AttentionRule, ...] = ()
    routing: tuple[RoutingRule, ...] = ()
    position: tuple[PositionRule, ...] = ()

    @property
    def rules(self) -> tuple[LayerRule, ...]:
        return (*self.attention, *self.routing, *self.position)

    def check(self, sizes: Mapping[str, Any], sets: Mapping[str, Any]) -> None:
        """Every size and layer set that is named is the family's own.

        Raises:
            ValueError: one is not; names it.
        """
        for rule in self.rules:
            what = getattr(rule, "kind", None) or getattr(rule, "scheme", None) or "routing"
            for name in rule.layers:
                if name != "all" and name not in sets:
                    raise ValueError(f"{what}: layer set {name!r} is not among `layer_sets`")
            for word in (word for text in rule.expressions() for word in words(text)):
                if word not in sizes:
                    raise ValueError(f"{what}: {word!r} is not among `sizes`")


@dataclass(frozen=True)
class BoundAttention:
    """Layers of one kind of attention. Those of multi-token prediction (`mtp`) are numbered on after the decoder's."""

    kind: AttentionKind
    layers: frozenset[int]
    sizes: Mapping[str, int]
    mtp: bool


@dataclass(frozen=True)
class BoundRouting:
    """Layers whose tokens choose `per_token` of `experts`."""

    layers: frozenset[int]
    experts: int
    per_token: int
    shared: int
    facts: Mapping[str, Scalar]
    mtp: bool


@dataclass(frozen=True)
class BoundPosition:
    """Layers with one scheme of positions. `parameters` is the config's object, empty where it has none."""

    scheme: str
    layers: frozenset[int]
    parameters: Mapping[str, Any]
    where: str
    """The key of `parameters` in the config."""
    theta: float | None
    dim: int | None


@dataclass(frozen=True)
class BoundDecoder:
    """A family's decoder rules for one config, those of included families among them."""

    attention: tuple[BoundAttention, ...] = ()
    routing: tuple[BoundRouting, ...] = ()
    position: tuple[BoundPosition, ...] = ()

    def __add__(self, other: Self) -> BoundDecoder:
        return BoundDecoder(
            self.attention + other.attention, self.routing + other.routing, self.position + other.position
        )


def bind_decoder(
    rules: DecoderRules,
    config: Mapping[str, Any],
    sizes: Mapping[str, int],
    sets: Mapping[str, frozenset[int]],
    layers: int,
) -> BoundDecoder:
    """Sizes and layers as numbers. A rule whose condition does not hold, or that has no layers, is left out.

    Raises:
        InputError: a size cannot be computed, a fact is malformed, heads cannot share those of keys and values, or
            more experts are chosen than there are.
    """
    attention: list[BoundAttention] = []
    routing: list[BoundRouting] = []
    position: list[BoundPosition] = []
    called = functools.partial(_called, rules, config)
    for rule in rules.rules:
        if not all(when.holds(config) for when in rule.when):
            continue
        chosen = rule.chosen(sets, sizes, layers)
        decoder = frozenset(layer for layer in chosen if layer < layers)
        for held, mtp in ((decoder, False), (chosen - decoder, True)):
            if not held:
                continue
            if isinstance(rule, AttentionRule):
                numbers = {name: evaluate(text, sizes, name) for name, text in rule.sizes.items()}
                _groups(rule, numbers, called)
                attention.append(BoundAttention(rule.kind, held, numbers, mtp))
            elif isinstance(rule, RoutingRule):
                routing.append(_routing(rule, held, mtp, config, sizes, called))
            elif isinstance(rule, PositionRule) and not mtp:
                position.append(_position(rule, held, config, sizes))
    return BoundDecoder(tuple(attention), tuple(routing), tuple(position))


def _called(rules: DecoderRules, config: Mapping[str, Any], size: str) -> str:
    """What the config calls a size: the key under which it has it."""
    rule = getattr(rules, "sizes", {}).get(size)  # a family's; rules by themselves have none
    return next((key for key in rule.keys if look_up(config, key) is not None), size) if rule else size


#: Heads that share others by groups of equal size.
_SHARED = (("heads", "kv_heads"), ("value_heads", "key_heads"), ("heads", "groups"))


def _groups(rule: AttentionRule, numbers: Mapping[str, int], called: Callable[[str], str]) -> None:
    for many, few in _SHARED:
        if many in numbers and few in numbers and (not numbers[few] or numbers[many] % numbers[few]):
            raise InputError(
                f"config.json: {called(rule.sizes[many])} {numbers[many]:,} is no multiple of "
                f"{called(rule.sizes[few])} {numbers[few]:,}"
            )


def _routing(
    rule: RoutingRule,
    held: frozenset[int],
    mtp: bool,
    config: Mapping[str, Any],
    sizes: Mapping[str, int],
    called: Callable[[str], str],
) -> BoundRouting:
    experts, chosen = evaluate(rule.experts, sizes, "experts"), evaluate(rule.per_token, sizes, "experts per token")
    if not 1 <= chosen <= experts:
        raise InputError(
            f"config.json: {called(rule.per_token)} is {chosen:,} and {called(rule.experts)} {experts:,}; a token is "
            f"routed to at least one expert, and to at most all"
        )
    shared = evaluate(rule.shared, sizes, "shared experts") if rule.shared else 0
    facts = {name: value for name, fact in rule.facts.items() if (value := fact.of(config)) is not None}
    return BoundRouting(held, experts, chosen, shared, facts, mtp)


def _position(
    rule: PositionRule, held: frozenset[int], config: Mapping[str, Any], sizes: Mapping[str, int]
) -> BoundPosition:
    if rule.scheme == "none":
        return BoundPosition(rule.scheme, held, {}, "", None, None)
    given = ((key, value) for key in rule.parameters if (value := look_up(config, key)) is not None)
    where, parameters = next(given, ("", dict[str, Any]()))
    if not isinstance(parameters, Mapping):
        raise InputError(f"config.json: {where} must be an object")
    theta = parameters.get("rope_theta")
    for key in rule.theta:
        theta = look_up(config, key) if theta is None else theta
    if theta is not None and (isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < 1e18):
        raise InputError(f"config.json: {rule.theta[0]} is {str(theta)[:40]!r}; it must be a positive number")
    dim = _rotated(rule, config, sizes) if rule.dim else None
    return BoundPosition(rule.scheme, held, parameters, where, None if theta is None else float(theta), dim)


def _rotated(rule: PositionRule, config: Mapping[str, Any], sizes: Mapping[str, int]) -> int:
    """How many dimensions of a head are rotated."""
    assert rule.dim
    dim = evaluate(rule.dim, sizes, "rotated dimensions")
    factor = rule.factor.of(config) if rule.factor else None
    if factor is None:
        return dim
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise InputError(f"config.json: {rule.factor_key} is {str(factor)[:40]!r}; it must be a number from 0 to 1")
    return int(dim * factor)
