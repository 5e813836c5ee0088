"""The work of one forward pass: FLOPs, bytes that must move, and messages, by class of operator.

For a whole model or for one rank of a parallel layout; the profile's roofline and the plan's prediction of time are
made from the same numbers. Left out: activations' own arithmetic, softmax, sampling (under 1 % of the FLOPs).
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from day0.architecture.attention.base import Attention, Held
from day0.architecture.bound import BoundRule
from day0.architecture.decoder_rules import BoundRouting
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.shares import rank_share
from day0.architecture.stored import Stored, StoredGroup
from day0.architecture.structure import LayerAttention, Structure, TensorGroup

#: Bytes of one element of what flows between operators.
ACTIVATION = 2

#: Kind of tensor → class of operator. Towers and multi-token prediction are no part of a step over text.
CLASS_OF_KIND = {
    "embedding": "embedding", "head": "head", "attention": "projections", "linear_attention": "projections",
    "indexer": "projections", "residual": "projections", "dense_mlp": "mlp", "shared_expert": "mlp",
    "routed_expert": "experts", "router": "router", "norm": "norms",
}  # fmt: skip
CLASSES = ("projections", "attention", "mlp", "experts", "router", "norms", "embedding", "head")


@dataclass(frozen=True)
class Step:
    """What one attention replica handles in one pass: `sequences` get `new` tokens each after `past` cached ones."""

    sequences: int
    new: int
    past: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.new


@dataclass(frozen=True)
class ClassWork:
    """Work of one class on one rank. FLOPs and bytes of a pass; `kernels` are launches; `dtype` what it computes in."""

    name: str
    dtype: str
    flops: float
    weight_bytes: float
    cache_bytes: float
    activation_bytes: float
    kernels: float

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


@dataclass(frozen=True)
class Collective:
    """`count` messages of `bytes` bytes on each of `ranks` ranks; `name` is the class of operator that waits."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    name: str
    ranks: int
    bytes: float
    count: int


@dataclass(frozen=True)
class RankWork:
    classes: tuple[ClassWork, ...]
    collectives: tuple[Collective, ...]

    @property
    def flops(self) -> float:
        return sum(part.flops for part in self.classes)

    @property
    def bytes(self) -> float:
        return sum(part.bytes for part in self.classes)


@dataclass
class _Sum:
    """A class of one dtype in the making."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    activation_bytes: float = 0.0
    kernels: float = 0.0


@dataclass(frozen=True, eq=False)
class WorkModel:
    """The work of one model as stored. Made once; `rank_work` is then quick enough for a search over layouts.

    `bytes_of` are the bytes of an element of what is cached, by what it is held as.
    """

    structure: Structure
    stored: Stored
    bytes_of: Mapping[Held, float]
    _shares: dict[tuple[BoundRule, int, int], float] = field(default_factory=dict)
    _ranks: dict[tuple[int, int], Attention] = field(default_factory=dict)
    _formats: dict[BoundRule, str] = field(default_factory=dict)

    def rank_work(self, step: Step, sizes: Sizes, stage: int = 0) -> RankWork:
        """The work of the rank that has most, of one pipeline stage.

        The output head runs for the last token of each sequence only. Routed experts: every rank computes its even
        share of the chosen ones, and reads those that at least one of the tokens is expected to choose.
        """
        span = pipeline_stages(self.structure.layers, sizes.pp)[stage]
        first, last = stage == 0, stage == sizes.pp - 1
        sums: dict[tuple[str, str], _Sum] = defaultdict(_Sum)
        for group, stored in self._groups:
            held = _held(group, span, first, last)
            if held:
                name = CLASS_OF_KIND[group.kind]
                dtype = self._format(group.rule)
                self._add_tensors(sums[name, dtype], name, group, stored, held, step, sizes)
        if last and self._tied_head:
            self._add_tensors(
                sums["head", self._format(self._tied_head[0].rule)], "head", *self._tied_head, 1, step, sizes
            )
        for entry in self._attention:
            layers = _count(entry.layers, span)
            if layers:
                self._add_attention(sums["attention", "bfloat16"], entry, layers, step, sizes)
        classes = tuple(
            ClassWork(name, dtype, s.flops, s.weight_bytes, s.cache_bytes, s.activation_bytes, s.kernels)
            for (name, dtype), s in sorted(sums.items(), key=lambda item: CLASSES.index(item[0][0]))
        )
        return RankWork(classes, tuple(self._collectives(step, sizes, span, first, last)))

    def _add_tensors(
        self,
        total: _Sum,
        name: str,
        group: TensorGroup,
        stored: tuple[StoredGroup, ...],
        layers: int,
        step: Step,
        sizes: Sizes,
    ) -> None:
        share = self._share(group.rule, sizes)
        nbytes = sum(item.nbytes * item.copies for item in stored) * share * layers
        elements = group.layer_elements * share * layers
        rows, columns = _matrix(group.rule)
        if name == "embedding":  # looked up, not multiplied
            looked_up = step.tokens * columns * (nbytes / elements if elements else ACTIVATION)
            total.weight_bytes += looked_up
            total.activation_bytes += step.tokens * columns * ACTIVATION
            total.kernels += 1
        elif name == "norms":
            width = columns or rows
            total.flops += 4.0 * step.tokens * width * layers
            total.weight_bytes += nbytes
            total.activation_bytes += 2.0 * step.tokens * width * ACTIVATION * layers
            total.kernels += layers
        elif name == "experts":
            routing = self._routing_of(group)
            tokens = step.tokens * sizes.group_replicas
            chosen = tokens * routing.per_token / routing.experts
            total.flops += 2.0 * elements * chosen
            total.weight_bytes += nbytes * touched(routing, tokens)
            per_rank = tokens * routing.per_token / sizes.ep
            total.activation_bytes += per_rank * (columns + rows / sizes.expert_tp) * ACTIVATION * layers
            total.kernels += layers * self._launches(group.rule)
        else:
            tokens = step.sequences if name == "head" else step.tokens
            if columns:
                total.flops += 2.0 * elements * tokens
                total.activation_bytes += tokens * (rows + columns) * share * ACTIVATION * layers
                total.kernels += layers * self._launches(group.rule)
            total.weight_bytes += nbytes

    def _add_attention(self, total: _Sum, entry: LayerAttention, layers: int, step: Step, sizes: Sizes) -> None:
        key = (id(entry), sizes.tp)
        attention = self._ranks.get(key)
        if attention is None:
            attention = self._ranks[key] = entry.attention.rank(sizes.tp)
        total.flops += layers * step.sequences * attention.flops(step.new, step.past)
        read = sum(count * self.bytes_of[held] for held, count in attention.read(step.new, step.past).items())
        total.cache_bytes += layers * step.sequences * read / sizes.dcp
        total.kernels += layers

    def _collectives(
        self, step: Step, sizes: Sizes, span: tuple[int, int], first: bool, last: bool
    ) -> Iterator[Collective]:
        """Two all-reduces a layer over the tensor parallel ranks; where attention is data-parallel beside the experts,
        each token is sent to the ranks of its experts and the results back instead of the second one."""
        hidden, layers = self.structure.hidden, span[1] - span[0]
        message = float(step.tokens * hidden * ACTIVATION)
        routed = sum(_count(tuple(sorted(r.layers)), span) for r in self.structure.routing if not r.mtp)
        spread = routed if sizes.ep > sizes.tp else 0
        if sizes.tp > 1:
            mixed = sum(_count(entry.layers, span) for entry in self._attention)
            yield Collective("all_reduce", "projections", sizes.tp, message, mixed)
            if layers - spread:
                yield Collective("all_reduce", "mlp", sizes.tp, message, layers - spread)
        if spread:
            routing = next(r for r in self.structure.routing if not r.mtp)
            copies = min(routing.per_token, sizes.ep)
            sent = message / sizes.tp * copies  # the ranks of a tensor parallel group hold the same tokens
            yield Collective("all_to_all", "experts", sizes.stage_ranks, sent, 2 * spread)
        if sizes.dcp > 1:
            yield Collective("all_gather", "attention", sizes.dcp, message / sizes.tp, 2 * layers)
        if sizes.tp > 1 and first:
            yield Collective("all_reduce", "embedding", sizes.tp, message, 1)
        if sizes.tp > 1 and last:
            logits = step.sequences * self.structure.padded_vocab / sizes.tp * ACTIVATION
            yield Collective("all_gather", "head", sizes.tp, logits, 1)
        if not last:
            yield Collective("send", "pipeline", 2, message, 1)

    @cached_property
    def _groups(self) -> tuple[tuple[TensorGroup, tuple[StoredGroup, ...]], ...]:
        """The tensors of a step over text, each with how it is stored."""
        return tuple(
            (group, self._stored_as(group.rule, group.layers))
            for group in self.structure.groups
            if group.kind in CLASS_OF_KIND and not group.mtp
        )

    def _stored_as(self, rule: BoundRule, layers: tuple[int, ...] | None) -> tuple[StoredGroup, ...]:
        """What is stored for one layer of a rule. Where layers differ, as it is in the layer that has most."""
        listed = [group for group in self.stored.groups if group.rule is rule and not group.mtp]
        if layers is None or not listed:
            return tuple(listed)
        by_layer: dict[int, list[StoredGroup]] = defaultdict(list)
        for group in listed:
            for layer in group.layers or ():
                by_layer[layer].append(group)
        if not by_layer:
            return tuple(listed)
        return tuple(max(by_layer.values(), key=lambda groups: sum(g.nbytes * g.copies for g in groups)))

    @cached_property
    def _tied_head(self) -> tuple[TensorGroup, tuple[StoredGroup, ...]] | None:
        """The embedding, where it is the output head too."""
        if any(group.kind == "head" for group, _ in self._groups):
            return None
        return next(((group, stored) for group, stored in self._groups if group.kind == "embedding"), None)

    @cached_property
    def _attention(self) -> tuple[LayerAttention, ...]:
        return tuple(entry for entry in self.structure.attention if not entry.mtp)

    def _routing_of(self, group: TensorGroup) -> BoundRouting:
        layers = set(group.layers or ())
        return next(r for r in self.structure.routing if not r.mtp and (not layers or layers & r.layers))

    def _format(self, rule: BoundRule) -> str:
        if rule not in self._formats:
            self._formats[rule] = self.stored.format_of(rule)
        return self._formats[rule]

    def _share(self, rule: BoundRule, sizes: Sizes) -> float:
        key = (rule, sizes.tp, sizes.ep)
        if key not in self._shares:
            self._shares[key] = rank_share(rule, sizes)
        return self._shares[key]

    def _launches(self, rule: BoundRule) -> float:
        """Kernels of one matrix: those that an engine fuses into one count as one together."""
        return self._launches_by_rule.get(rule, 1.0)

    @cached_property
    def _launches_by_rule(self) -> dict[BoundRule, float]:
        fused: dict[tuple[str, tuple[int, ...] | None], list[BoundRule]] = defaultdict(list)
        for group, _ in self._groups:
            target = group.rule.targets.get("vllm")
            if target and _matrix(group.rule)[1]:
                fused[target.name, group.layers].append(group.rule)
        return {rule: 1 / len(rules) for rules in fused.values() for rule in rules}


def touched(routing: BoundRouting, tokens: float) -> float:
    """The expected share of a layer's experts that at least one of `tokens` tokens chooses, all equally likely.

    1 - (1 - k / E)^tokens: each token misses an expert with probability 1 - k / E.
    """
    missed = 1 - routing.per_token / routing.experts
    return 1.0 if missed <= 0 else -math.expm1(tokens * math.log(missed))


def _held(group: TensorGroup, span: tuple[int, int], first: bool, last: bool) -> int:
    """How many layers of a pipeline stage have such tensors (1 for what stands outside of layers)."""
    if group.layers is not None:
        return _count(group.layers, span)
    return int(first if group.rule.rule.stage == "first" else last)


def _count(layers: tuple[int, ...], span: tuple[int, int]) -> int:
    return bisect.bisect_left(layers, span[1]) - bisect.bisect_left(layers, span[0])


def _matrix(rule: BoundRule) -> tuple[int, int]:
    """Rows and columns that a token is multiplied by; (length, 0) for a vector."""
    shape = rule.shape[1:] if rule.rule.experts == 0 else rule.shape
    if len(shape) < 2 or rule.rule.kind == "norm":
        return (shape[-1] if shape else 1), 0
    if len(shape) == 3 and shape[1] == 1:
        return shape[0], 0  # a short convolution
    return shape[0], math.prod(shape[1:])
