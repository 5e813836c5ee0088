"""Which layers of a model have a tensor: dense or expert layers, full or linear attention, multi-token prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from day0.architecture.expressions import evaluate, words
from day0.architecture.keys import look_up
from day0.artifacts.base import Frozen
from day0.errors import InputError

#: Most layers that are believed: sets of them are made, and a hostile config must not fill the memory.
MOST_LAYERS = 10_000

#: Entries that a list may have beyond the decoder's layers, for those of multi-token prediction.
MOST_MORE = 8


class LayerSet(Frozen):
    """Layers by the config. What is given narrows the set; it starts with all decoder layers, or those of `of`.

    The conditions:
      start, end       first layer, one past the last one (expressions in sizes); `end` beyond the decoder's layers
                       makes a set of multi-token prediction layers, which are numbered on
      every, remainder every so many-th layer, counted from `remainder` (expressions)
      key              a list in the config with an entry a layer, or a string with a character a layer; or, with
                       `base`, a list of layer numbers that count from `base`; of several the first that is there
      values           the entries that count (`key`); left out: those that are true or not zero
      absent           what the set is where the config lacks `key`: all, or none; left out: an error
      but              sets that are taken away
      optional         empty where the checkpoint has none of the tensors that this set alone has
    """

    of: tuple[str, ...] = ()
    start: str | None = None
    end: str | None = None
    every: str | None = None
    remainder: str = "0"
    key: str | tuple[str, ...] | None = None
    values: tuple[str | int | float | bool, ...] | None = None
    base: int | None = None
    absent: str | None = Field(default=None, pattern="^(all|none)$")
    but: tuple[str, ...] = ()
    optional: bool = False

    @property
    def size_names(self) -> set[str]:
        return {word for text in (self.start, self.end, self.every, self.remainder) if text for word in words(text)}

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.key is None and (self.values is not None or self.base is not None or self.absent):
            raise ValueError("`values`, `base` and `absent` say how `key` is read; give `key`")
        if self.base is not None and self.values is not None:
            raise ValueError("`key` is a list of layer numbers (`base`) or of kinds (`values`), not both")
        return self


def resolve_layers(
    sets: Mapping[str, LayerSet],
    config: Mapping[str, Any],
    sizes: Mapping[str, int],
    layers: int,
    stored: Callable[[str, frozenset[int]], bool] = lambda name, layers: True,
) -> dict[str, frozenset[int]]:
    """The layers of every set, by its name; `all` is the decoder's.

    `stored` says whether a checkpoint has tensors of a set's layers; asked for optional sets.

    Raises:
        InputError: the config lacks what a set is read from, or it is of another kind or length; names the key.
    """
    believe_layers(layers, "num_hidden_layers")
    found = {"all": frozenset(range(layers))}
    for name, rule in sets.items():
        chosen = frozenset[int]().union(*(found[base] for base in rule.of)) if rule.of else found["all"]
        if rule.start is not None or rule.end is not None:
            start = evaluate(rule.start, sizes, name) if rule.start else 0
            end = evaluate(rule.end, sizes, name) if rule.end else layers
            believe_layers(end, f"the layer set {name!r} ({rule.end})")
            span = frozenset(range(start, end))
            chosen = span if end > layers and not rule.of else chosen & span
        if rule.every is not None:
            every, remainder = evaluate(rule.every, sizes, name), evaluate(rule.remainder, sizes, name)
            chosen = frozenset(layer for layer in chosen if (layer - remainder) % every == 0)
        if rule.key is not None:
            chosen &= _listed(rule, config, layers)
        for other in rule.but:
            chosen -= found[other]
        if rule.optional and not stored(name, chosen):
            chosen = frozenset()
        found[name] = chosen
    return found


def believe_layers(layers: int, what: str) -> None:
    """Refuse a number of layers that nothing should be made of, before something is.

    Raises:
        InputError: it is over MOST_LAYERS; names `what` says so.
    """
    if layers > MOST_LAYERS:
        raise InputError(f"config.json: by {what} there are {layers:,} layers; at most {MOST_LAYERS:,} are believed")


def _listed(rule: LayerSet, config: Mapping[str, Any], layers: int) -> frozenset[int]:
    assert rule.key is not None
    keys = (rule.key,) if isinstance(rule.key, str) else rule.key
    key, value = next(((key, found) for key in keys if (found := look_up(config, key)) is not None), (keys[0], None))
    if value is None:
        if rule.absent is None:
            raise InputError(f"config.json: {key} is missing; it says which layers are of which kind")
        return frozenset(range(layers)) if rule.absent == "all" else frozenset()
    if rule.base is not None:
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise InputError(f"config.json: {key} must be a list of layer numbers")
        numbers = frozenset(number - rule.base for number in value)
        if outside := sorted(number for number in numbers if not 0 <= number < layers + MOST_MORE):
            raise InputError(
                f"config.json: {key} has the layer {str(outside[0] + rule.base)[:40]}; they count from {rule.base}, "
                f"and there are {layers}"
            )
        return numbers
    if not isinstance(value, list | str):
        raise InputError(f"config.json: {key} must have an entry for each of the {layers} layers")
    if not layers <= len(value) <= layers + MOST_MORE:
        raise InputError(
            f"config.json: {key} has {len(value):,} entries for the {layers} layers; one of the two is wrong"
        )
    if rule.values is None:
        return frozenset(layer for layer, entry in enumerate(value) if entry)
    return frozenset(layer for layer, entry in enumerate(value) if entry in rule.values)
