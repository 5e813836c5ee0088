"""What a model consists of: its tensors by their rules, and what its layers do.

The rules are those of configs/families/, so that counting, planning and resharding cannot disagree. They are kept as
rules, with the layers and the number of copies that each has: Kimi-K3's half million tensors are some fifty groups.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from day0.architecture.attention.base import Attention
from day0.architecture.attention.kinds import attention_of
from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, BoundRule, counted_as, normalised
from day0.architecture.config import ModelConfig, model_type_of, parse_model_config
from day0.architecture.decoder_rules import BoundAttention, BoundPosition, BoundRouting
from day0.architecture.resemblance import Recognised, recognise
from day0.architecture.unread import foreign_part
from day0.errors import InputError
from day0.safetensors_header import TensorInfo

#: The layout whose padding of the vocabulary is planned for.
ENGINE_LAYOUT = "vllm"


@dataclass(frozen=True)
class TensorGroup:
    """All tensors of one rule: `copies` of them (experts, blocks of a tower) in each of `layers`.

    `layers` is None for what stands outside of layers. Groups of multi-token prediction (`mtp`) are apart from the
    decoder's of the same rule.
    """

    rule: BoundRule
    layers: tuple[int, ...] | None
    copies: int
    mtp: bool

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return counted_as(self.rule, self.mtp)

    @property
    def layer_elements(self) -> int:
        """Elements in one layer (or outside of layers, in all)."""
        return math.prod(self.rule.shape) * self.copies

    @property
    def elements(self) -> int:
        return self.layer_elements * (1 if self.layers is None else len(self.layers))


@dataclass(frozen=True)
class LayerAttention:
    """The attention of some layers, numbered as in the checkpoint; multi-token prediction's follow the decoder's."""

    attention: Attention
    layers: tuple[int, ...]
    mtp: bool


@dataclass(frozen=True)
class Structure:
    """A model by its config (and, where there is a checkpoint, by which optional tensors that has)."""

    config: ModelConfig
    family: BoundFamily
    groups: tuple[TensorGroup, ...]
    attention: tuple[LayerAttention, ...]
    recognised: Recognised
    """How the family was found."""
    stored_head: bool = False
    """Tied by its config, but with an output head of its own in the checkpoint."""

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return self.family.layers

    @property
    def routing(self) -> tuple[BoundRouting, ...]:
        return self.family.decoder.routing

    @property
    def position(self) -> tuple[BoundPosition, ...]:
        return self.family.decoder.position

    @cached_property
    def total(self) -> int:
        """Parameters of the model itself: without multi-token prediction, buffers, and the copy of a tied head."""
        return sum(group.elements for group in self.groups if counts(group))

    @cached_property
    def hidden(self) -> int:
        return self._embedding[1]

    @cached_property
    def vocab(self) -> int:
        return self._embedding[0]

    @cached_property
    def _embedding(self) -> tuple[int, int]:
        shapes = [g.rule.shape for g in self.groups if g.rule.rule.kind == "embedding" and len(g.rule.shape) == 2]
        if not shapes:
            raise InputError(f"family {self.family.family.name!r} has no embedding, so its width is not known")
        vocab, hidden = shapes[0]
        return vocab, hidden

    @property
    def padded_vocab(self) -> int:
        """The vocabulary as the engine pads it before it is divided."""
        layout = self.family.layouts.get(ENGINE_LAYOUT)
        multiple = layout.vocab_multiple if layout else 1
        return -(-self.vocab // multiple) * multiple


def counts(group: TensorGroup) -> bool:
    """Whether a group's elements are parameters of the model itself."""
    return group.kind not in ("buffer", "mtp")


def structure_of(raw: Mapping[str, Any], where: str, tensors: Mapping[str, TensorInfo] | None = None) -> Structure:
    """The structure of the model that a config object describes; `where` names the file in errors.

    With the tensors of a checkpoint, what the config leaves open is told by them.

    Raises:
        InputError: a value cannot be used, or no family describes such a model.
    """
    model_type = model_type_of(raw, where)
    try:
        recognised = recognise(raw, tensors)
        bound = bind(recognised.family, raw, tensors)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if part := foreign_part(raw, bound):
        raise InputError(
            f"{where}: model_type {model_type!r}, but the config has {part}, which the family {bound.family.name!r} "
            f"does not describe; it is not counted as a plain model"
        )
    config = parse_model_config(raw, where)
    groups = tuple(_groups(bound, _optional_numbers(bound, tensors) if tensors is not None else {}))
    attention = tuple(_attention(bound.decoder.attention))
    covered = {layer for held in attention if not held.mtp for layer in held.layers}
    if missing := sorted(set(range(bound.layers)) - covered - _without_attention(bound)):
        raise InputError(f"{where}: family {bound.family.name!r} does not say what attention layer {missing[0]} has")
    stored_head = bound.tied and any(group.rule.rule.kind == "head" for group in groups)
    if stored_head:  # served, but the same matrix as the embedding: not counted again
        groups = tuple(group for group in groups if group.rule.rule.kind != "head")
    return Structure(config, bound, groups, attention, recognised, stored_head)


def _groups(bound: BoundFamily, present: Mapping[BoundRule, list[tuple[int, ...]]]) -> Iterator[TensorGroup]:
    """Rules that must be there by the config, and those that may be, as far as the checkpoint has them."""
    for rule in bound.rules:
        if rule.optional or rule in present:
            yield from _stored_group(bound, rule, present.get(rule, []))
            continue
        copies = math.prod(1 if held is None else len(held) for n, held in rule.numbers.items() if n != "layer")
        if "layer" not in rule.places:
            yield TensorGroup(rule, None, copies, named_mtp(rule))
            continue
        listed = sorted(rule.numbers["layer"] or ())
        yield from _split(rule, dict.fromkeys(listed, copies), bound.layers)


def _stored_group(bound: BoundFamily, rule: BoundRule, present: list[tuple[int, ...]]) -> Iterator[TensorGroup]:
    if not present:
        return
    place = rule.places.get("layer")
    if place is None:
        yield TensorGroup(rule, None, len(present), named_mtp(rule))
        return
    copies: dict[int, int] = defaultdict(int)
    for numbers in present:
        copies[numbers[place]] += 1
    yield from _split(rule, copies, bound.layers)


def _split(rule: BoundRule, copies: Mapping[int, int], layers: int) -> Iterator[TensorGroup]:
    """One group for all layers with as many copies, the decoder's apart from those of multi-token prediction."""
    sets: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for layer, count in copies.items():
        sets[count, named_mtp(rule) or layer >= layers].append(layer)
    for (count, mtp), listed in sets.items():
        yield TensorGroup(rule, tuple(sorted(listed)), count, mtp)


def named_mtp(rule: BoundRule) -> bool:
    """Multi-token prediction in modules of its own."""
    return rule.rule.kind == "mtp" or rule.name.startswith("mtp.") or ".mtp." in rule.name


def _optional_numbers(bound: BoundFamily, tensors: Mapping[str, TensorInfo]) -> dict[BoundRule, list[tuple[int, ...]]]:
    """Of each rule that need not be there, or as often as the checkpoint says, the numbers of the weights it has."""
    open_rules = [rule for rule in bound.rules if _left_open(rule)]
    found: dict[BoundRule, list[tuple[int, ...]]] = defaultdict(list)
    if not open_rules:
        return found
    stems = {normalised(rule.name)[0].removesuffix(".weight") for rule in open_rules}
    begins = re.compile("|".join(re.escape(stem).replace(r"\#", r"\d+") for stem in sorted(stems))).match
    for tensor in tensors.values():
        match = bound.find(tensor) if begins(tensor.name) else None
        if match and _left_open(match.rule) and (match.companion is None or match.companion.role == "packed"):
            found[match.rule].append(match.numbers)
    return found


def _left_open(rule: BoundRule) -> bool:
    """Whether the config does not say how many such tensors there are."""
    return rule.optional or rule.count is None


def _attention(listed: Iterable[BoundAttention]) -> Iterator[LayerAttention]:
    for bound in listed:
        yield LayerAttention(attention_of(bound), tuple(sorted(bound.layers)), bound.mtp)


def _without_attention(bound: BoundFamily) -> set[int]:
    """Layers that are an MLP alone (Nemotron-H): those without a tensor of attention's kinds."""
    having: set[int] = set()
    for rule in bound.rules:
        if rule.rule.kind in ("attention", "linear_attention") and "layer" in rule.places:
            having |= set(rule.numbers["layer"] or ())
    return set(range(bound.layers)) - having
