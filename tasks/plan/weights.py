"""Bytes of weights on every rank of a layout, by the cuts that resharding makes: equal to what layout `hf` writes.

A cut depends on the rule, on how its tensors are stored and on the number of ranks, not on the single tensor. So the
half million tensors of a large model are some hundred cuts for each number of ranks, and the rest is sums over layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from day0.architecture.bound import BoundFamily, BoundRule
from day0.architecture.cuts import Cutter
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.rules import TOWERS
from day0.architecture.slicing import World, expert_range
from day0.architecture.stored import Stored, StoredGroup
from day0.architecture.structure import ENGINE_LAYOUT
from day0.errors import InputError


@dataclass(frozen=True)
class _Held:
    """Bytes of something on one rank, by where they lie in a pipeline."""

    before: tuple[int, ...]
    """Of the layers before each layer, and at the end of all."""
    first: int
    last: int
    """With multi-token prediction, which stands after the last layer."""
    embedding: int


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of one model as stored. Ranks are numbered within their pipeline stage, as reshard numbers them."""

    bound: BoundFamily
    stored: Stored
    _bytes: dict[tuple[bool, int, int, int], list[tuple[StoredGroup, int]]] = field(default_factory=dict)
    _held: dict[tuple[object, ...], _Held] = field(default_factory=dict)
    _whole_towers: dict[int, bool] = field(default_factory=dict)
    _cutters: dict[tuple[int, int, bool], Cutter] = field(default_factory=dict)

    @cached_property
    def groups(self) -> tuple[StoredGroup, ...]:
        """What is loaded, in the order of the family's rules: all but what reshard leaves out."""
        order = {rule: place for place, rule in enumerate(self.bound.rules)}
        loaded = (group for group in self.stored.groups if group.rule.rule.drop is None)
        return tuple(sorted(loaded, key=lambda group: order[group.rule]))

    @cached_property
    def shared_embedding(self) -> bool:
        """The embedding is the head, and the checkpoint has none of its own: the last stage needs the table again."""
        return self.bound.tied and not any(group.rule.rule.kind == "head" for group in self.groups)

    @cached_property
    def vocab(self) -> int:
        """Rows of the largest table that is divided by its vocabulary."""
        tables = (group.rule.shape[0] for group in self.groups if group.rule.rule.split.how == "vocab")
        return max(tables, default=1)

    @cached_property
    def engine_multiple(self) -> int:
        """The engine pads the vocabulary to a multiple of this."""
        rule = self.bound.layouts.get(ENGINE_LAYOUT)
        return rule.vocab_multiple if rule else 1

    @cached_property
    def experts(self) -> int:
        """Experts of the layer that has most; 0 of a model without."""
        return max(self.expert_counts, default=0)

    @cached_property
    def expert_counts(self) -> tuple[int, ...]:
        """How many routed experts layers have; a model of one kind of layers has one number."""
        return tuple(sorted({experts_of(group.rule) for group in self.groups if is_routed(group.rule)}))

    def stages(self, sizes: Sizes, rank: int = 0) -> list[int]:
        """Bytes on a rank of each pipeline stage. Rank 0 holds most: what does not divide goes to the first ones.

        Raises:
            InputError: these sizes cannot be had (tasks.plan.constraints says why).
        """
        each = sizes.expert_tp
        found = [0] * sizes.pp
        for held in (self._dense(sizes.tp, rank % sizes.tp), self._routed(each, rank % each, sizes.ep, rank // each)):
            for stage, (begin, end) in enumerate(pipeline_stages(self.bound.layers, sizes.pp)):
                found[stage] += held.before[end] - held.before[begin]
            found[0] += held.first
            found[-1] += held.last
            found[-1] += held.embedding if self.shared_embedding and sizes.pp > 1 else 0
        return found

    def engine_padding(self, sizes: Sizes) -> list[int]:
        """Bytes by stage of the rows that the engine adds to the vocabulary where resharding adds none."""
        added = [0] * sizes.pp
        if self._vocab_multiple(sizes.tp) == self.engine_multiple or self.vocab % self.engine_multiple == 0:
            return added
        padded = self._part(False, sizes.tp, 0, self.engine_multiple)
        own = self._part(False, sizes.tp, 0, self._vocab_multiple(sizes.tp))
        for (group, few), (_, many) in zip(own, padded, strict=True):
            outside = group.layers is None and group.rule.rule.stage == "first"
            added[0 if outside else -1] += (many - few) * len(group.layers or (0,))
            if self.shared_embedding and group.rule.rule.kind == "embedding" and sizes.pp > 1:
                added[-1] += many - few
        return added

    def rank_bytes(self, group: StoredGroup, sizes: Sizes, rank: int = 0) -> int:
        """Bytes of a group's tensors on a rank, in one layer or outside of layers."""
        routed, each = is_routed(group.rule), sizes.expert_tp
        ranks = each if routed else sizes.tp
        part = self._part(routed, ranks, rank % ranks, self._vocab_multiple(ranks))
        found = next(nbytes for other, nbytes in part if other is group)
        return _of_experts(group, found, sizes.ep, rank // each) if routed else found

    def whole_towers(self, tp: int) -> bool:
        """Whether a tower of images or sound does not divide over `tp` ranks, so that each holds it whole."""
        if tp not in self._whole_towers:
            cutter = self._cutter(tp, 1, False)
            try:
                for group in self.groups:
                    if group.rule.rule.kind in TOWERS:
                        cutter.cuts(cutter.kind(group.rule, group.shape, group.dtype, group.grains))
                self._whole_towers[tp] = False
            except InputError:
                self._whole_towers[tp] = True
        return self._whole_towers[tp]

    def _dense(self, tp: int, rank: int) -> _Held:
        """Everything but routed experts, on one of `tp` ranks."""
        key = (tp, rank)
        if key not in self._held:
            self._held[key] = self._added_up(self._part(False, tp, rank, self._vocab_multiple(tp)))
        return self._held[key]

    def _routed(self, each: int, rank: int, ep: int, place: int) -> _Held:
        """Routed experts on one of the `each` ranks of an expert group, of which there are `ep`."""
        key = (each, rank, "experts", *((count, _count(count, ep, place)) for count in self.expert_counts))
        if key not in self._held:
            part = self._part(True, each, rank, 1)
            self._held[key] = self._added_up((g, _of_experts(g, nbytes, ep, place)) for g, nbytes in part)
        return self._held[key]

    def _added_up(self, part: Iterable[tuple[StoredGroup, int]]) -> _Held:
        by_layer = [0] * self.bound.layers
        first = last = embedding = 0
        for group, nbytes in part:
            if group.layers is None:
                first, last = (first + nbytes, last) if group.rule.rule.stage == "first" else (first, last + nbytes)
                embedding += nbytes if group.rule.rule.kind == "embedding" else 0
            for layer in group.layers or ():
                if layer < self.bound.layers:
                    by_layer[layer] += nbytes
                else:
                    last += nbytes
        return _Held(tuple(itertools.accumulate(by_layer, initial=0)), first, last, embedding)

    def _part(self, routed: bool, ranks: int, rank: int, multiple: int) -> list[tuple[StoredGroup, int]]:
        """Bytes of each group's tensors in a layer, of all experts together, on one of `ranks` ranks."""
        key = (routed, ranks, rank, multiple)
        if key not in self._bytes:
            cutter = self._cutter(ranks, multiple, self.whole_towers(ranks))
            self._bytes[key] = [
                (
                    group,
                    group.copies
                    * cutter.cuts(cutter.kind(group.rule, group.shape, group.dtype, group.grains))[rank].nbytes,
                )
                for group in self.groups
                if is_routed(group.rule) == routed
            ]
        return self._bytes[key]

    def _cutter(self, ranks: int, multiple: int, whole_towers: bool) -> Cutter:
        """Cuts over `ranks` ranks, every one of which has all experts."""
        key = (ranks, multiple, whole_towers)
        if key not in self._cutters:
            self._cutters[key] = Cutter(World(ranks, 1, 1), multiple, whole_towers)
        return self._cutters[key]

    def _vocab_multiple(self, tp: int) -> int:
        """As layout `hf` writes the vocabulary, where it divides; else as the engine pads it, so that it does."""
        rule = self.bound.layouts.get("hf")
        own = rule.vocab_multiple if rule else 1
        return own if -(-self.vocab // own) * own % tp == 0 else self.engine_multiple


def _of_experts(group: StoredGroup, whole: int, ep: int, place: int) -> int:
    """Of the bytes of all experts of a layer, those of one expert group."""
    experts, counted = experts_of(group.rule), group.rule.rule.experts
    if not experts or (counted is not None and all(grain.dim != counted for grain in group.grains)):
        return whole  # not of single experts, or one value for all
    return whole * _count(experts, ep, place) // experts


def experts_of(rule: BoundRule) -> int:
    """How many routed experts a layer has, by one of their rules."""
    if rule.rule.experts is not None:
        return rule.shape[rule.rule.experts]
    return len(rule.numbers.get("expert") or ())


def is_routed(rule: BoundRule) -> bool:
    return rule.rule.kind == "routed_expert"


def _count(experts: int, ep: int, place: int) -> int:
    first, last = expert_range(experts, ep, place) if experts else (0, 0)
    return last - first
