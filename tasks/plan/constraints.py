"""What divides and what does not: the named constraints of a layout, whatever the memory.

They come from the splits of the family's rules and from how the tensors are stored, so that a new family needs no code
here. Fewer key-value heads than ranks are no obstacle, and neither is a tower of images or sound that does not divide:
engines let ranks share the first, and hold the second whole on each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from day0.architecture.bound import BoundRule, BoundSegment
from day0.architecture.family import load_family
from day0.architecture.parallel import Sizes
from day0.architecture.rules import TOWERS
from day0.architecture.slicing import rank_range
from day0.architecture.stored import StoredGroup
from day0.architecture.structure import Structure
from day0.errors import InputError
from tasks.plan.weights import Weights, experts_of, is_routed

VOCABULARY = "vocab_size"
SHARED: Final = "context parallel"

_NAME = re.compile(r"[A-Za-z_]\w*")

#: Kinds of attention whose cache no rank has a head of its own in: every rank holds it all, unless they share tokens.
LATENT = ("latent", "sparse_latent")

#: Kinds for which decode-context parallelism is not known to be there (vLLM 0.32.0, v1/kv_cache_interface.py
#: `dcp_sharded` is of full attention and of multi-head latent attention).
UNSHARED = ("compressed", "block_sparse", "cross")


Constraint = Literal[
    "heads and rows", "shared heads", "vocabulary", "quantisation block", "experts", "pipeline", "context parallel",
    "sizes", "nodes", "devices", "memory", "tpot",
]  # fmt: skip


@dataclass(frozen=True)
class Obstacle:
    """Why sizes are impossible: `dimension` of `size` cannot be divided by `divisor` (None: nothing is divided)."""

    constraint: Constraint
    reason: str
    dimension: str
    size: int
    divisor: int | None


@dataclass(frozen=True, eq=False)
class Constraints:
    """All that forbids sizes for one model as it is stored."""

    structure: Structure
    weights: Weights
    _splits: dict[tuple[int, bool], tuple[Obstacle, ...]] = field(default_factory=dict)

    def obstacles(self, sizes: Sizes) -> list[Obstacle]:
        """Everything about the model that forbids these sizes, what is never cut first, then blocks, each once."""
        found = [*self._shape(sizes), *self.splits(sizes.tp, routed=False), *self._pipeline(sizes)]
        if self.weights.experts:
            found += [*self._experts(sizes), *self.splits(sizes.expert_tp, routed=True)]
        elif sizes.ep > 1:
            reason = f"ep {sizes.ep} needs experts to divide, and the model has none"
            found.append(Obstacle("experts", reason, "num_experts", 0, sizes.ep))
        found += self.context_parallel(sizes)
        return list(dict.fromkeys(found))

    def splits(self, ranks: int, routed: bool) -> tuple[Obstacle, ...]:
        """What does not divide over `ranks` ranks: of routed experts those that share each, of all else tp."""
        if (ranks, routed) not in self._splits:
            units: dict[tuple[str, int, int | None], Obstacle] = {}
            blocks: dict[tuple[str, int, int | None], Obstacle] = {}
            for group in self.weights.groups:
                if is_routed(group.rule) != routed or group.rule.rule.kind in TOWERS or group.rule.dim is None:
                    continue
                for obstacle in _units(group, ranks, self.weights.engine_multiple):
                    units.setdefault((obstacle.dimension, obstacle.size, obstacle.divisor), obstacle)
                if not units:
                    for obstacle in _blocks(group, ranks):
                        blocks.setdefault((obstacle.dimension, obstacle.size, obstacle.divisor), obstacle)
            listed = sorted(units.values(), key=lambda obstacle: obstacle.dimension == VOCABULARY)
            self._splits[ranks, routed] = (*listed, *blocks.values())
        return self._splits[ranks, routed]

    def notes(self, sizes: Sizes) -> list[str]:
        """What is no obstacle, but is done otherwise than a plain division."""
        found = []
        towers = {group.rule.rule.kind for group in self.weights.groups if group.rule.rule.kind in TOWERS}
        if towers and sizes.tp > 1 and self.weights.whole_towers(sizes.tp):
            found.append(
                f"the {' and '.join(sorted(towers))} tensors do not divide over tp {sizes.tp}: every rank holds them "
                f"whole and takes its share of the images (vLLM: --mm-encoder-tp-mode data)"
            )
        for name, units in self._shared(sizes.tp):
            found.append(f"{name} {units} is less than tp {sizes.tp}: {sizes.tp // units} ranks hold the same ones")
        padded = self.structure.padded_vocab
        if self.weights.vocab % sizes.tp and padded % sizes.tp == 0:
            found.append(
                f"the vocabulary of {self.weights.vocab:,} is padded to {padded:,}, as the engine does; reshard can "
                f"divide it in the engine's layout only"
            )
        return found

    def _shared(self, tp: int) -> list[tuple[str, int]]:
        """What is counted by fewer units than ranks, which then share them."""
        segments = (s for group in self.weights.groups if not is_routed(group.rule) for s in group.rule.segments)
        return list(dict.fromkeys((s.counted, s.units) for s in segments if s.replicate and s.units < tp))

    def _shape(self, sizes: Sizes) -> Iterator[Obstacle]:
        """Whether the sizes fit together at all."""
        larger, smaller = sizes.stage_ranks, min(sizes.tp, sizes.ep)
        if larger % smaller:
            reason = f"of tp {sizes.tp} and ep {sizes.ep} one must divide the other"
            yield Obstacle("sizes", reason, "ep", sizes.ep, sizes.tp)
        elif sizes.tp * sizes.dp % larger:
            reason = f"ep {sizes.ep} needs tp x dp to be a multiple of it, and tp {sizes.tp} x dp {sizes.dp} is not"
            yield Obstacle("sizes", reason, "ep", sizes.tp * sizes.dp, sizes.ep)

    def _pipeline(self, sizes: Sizes) -> Iterator[Obstacle]:
        layers = self.structure.layers
        if sizes.pp > layers:
            reason = f"num_hidden_layers {layers} is less than pp {sizes.pp}: a stage would be empty"
            yield Obstacle("pipeline", reason, "num_hidden_layers", layers, sizes.pp)

    def _experts(self, sizes: Sizes) -> Iterator[Obstacle]:
        for name, count in self._expert_counts:
            if count % sizes.ep:
                more = -count % sizes.ep
                physical = (count + more) // sizes.ep
                reason = (
                    f"{name} {count} is not divisible by ep {sizes.ep}; with {more} redundant experts (EPLB) "
                    f"{count + more} = {sizes.ep} x {physical} would be, which day0 does not lay out"
                )
                yield Obstacle("experts", reason, name, count, sizes.ep)

    @cached_property
    def _expert_counts(self) -> list[tuple[str, int]]:
        rules = [group.rule for group in self.weights.groups if is_routed(group.rule) and experts_of(group.rule)]
        return list(dict.fromkeys((_experts_title(rule), experts_of(rule)) for rule in rules))

    def context_parallel(self, sizes: Sizes) -> list[Obstacle]:
        """What forbids a decode-context parallel size."""
        return list(self._context_parallel(sizes)) if sizes.dcp > 1 else []

    def _context_parallel(self, sizes: Sizes) -> Iterator[Obstacle]:
        """As vLLM 0.32.0, config/model.py `verify_with_parallel_config`: ranks that would hold the same cache share its
        tokens; of grouped-query attention they divide the queries of a key-value head too."""
        if sizes.tp % sizes.dcp:
            yield Obstacle(SHARED, f"dcp {sizes.dcp} does not divide tp {sizes.tp}", "tp", sizes.tp, sizes.dcp)
            return
        for held in self.structure.attention:
            counts = held.attention.sizes
            kv_heads = counts.get("kv_heads")
            if held.attention.kind in UNSHARED:
                reason = f"dcp {sizes.dcp}: no engine shares out the tokens of {held.attention.name} over ranks"
                yield Obstacle(SHARED, reason, "dcp", sizes.dcp, None)
                return
            if held.attention.kind in LATENT or kv_heads is None:
                continue
            if sizes.tp % (kv_heads * sizes.dcp):
                reason = (
                    f"dcp {sizes.dcp} shares out the tokens of ranks that hold the same key-value heads: tp {sizes.tp} "
                    f"is no multiple of num_key_value_heads {kv_heads} x dcp {sizes.dcp}"
                )
                yield Obstacle(SHARED, reason, "num_key_value_heads", sizes.tp, kv_heads * sizes.dcp)
            elif counts.get("heads", kv_heads) // kv_heads % sizes.dcp:
                queries = counts.get("heads", kv_heads) // kv_heads
                reason = f"{queries} query heads for each key-value head are not divisible by dcp {sizes.dcp}"
                yield Obstacle(SHARED, reason, "num_attention_heads", queries, sizes.dcp)


def _units(group: StoredGroup, ranks: int, vocab_multiple: int) -> Iterator[Obstacle]:
    """What is never cut: heads, groups, rows."""
    rule = group.rule
    for segment in rule.segments:
        if rule.rule.split.how == "vocab":
            padded = -(-segment.size // vocab_multiple) * vocab_multiple
            if padded % ranks:
                shown = f"{padded} (padded from {segment.size})" if padded != segment.size else str(padded)
                reason = f"vocab_size {shown} is not divisible by tp {ranks}"
                yield Obstacle("vocabulary", reason, VOCABULARY, padded, ranks)
        elif segment.replicate and segment.units < ranks:
            if ranks % segment.units:
                name = _title(rule, segment)
                reason = f"tp {ranks} is no multiple of {name} {segment.units}, so ranks cannot share them evenly"
                yield Obstacle("shared heads", reason, name, segment.units, ranks)
        elif segment.units % ranks and not rule.rule.split.uneven:
            name = _title(rule, segment)
            reason = f"{name} {segment.units} is not divisible by {_of(rule)} {ranks} ({rule.name})"
            yield Obstacle("heads and rows", reason, name, segment.units, ranks)


def _blocks(group: StoredGroup, ranks: int) -> Iterator[Obstacle]:
    """Blocks of a quantised weight that a rank's share would cut."""
    rule = group.rule
    grain = next((grain.size for grain in group.grains if grain.dim == rule.dim), 1)
    if ranks == 1 or grain <= 1 or rule.rule.split.how == "vocab":
        return
    start, end = 0, sum(segment.size for segment in rule.segments)
    for segment in rule.segments:
        for rank in (0, 1, ranks - 1):
            first, last = _held(rule, segment, ranks, rank)
            cut = (start + first) % grain or ((start + last) % grain and start + last != end)
            if cut and last > first:
                yield _cut_block(rule, segment, ranks, last - first, grain)
                break
        start += segment.size


def _held(rule: BoundRule, segment: BoundSegment, ranks: int, rank: int) -> tuple[int, int]:
    try:
        return rank_range(
            segment.size, segment.units, ranks, rank, segment.replicate, rule.rule.split.uneven, segment.counted
        )
    except InputError:  # an obstacle of its own, by _units
        return 0, 0


def _cut_block(rule: BoundRule, segment: BoundSegment, ranks: int, held: int, grain: int) -> Obstacle:
    share = f"{segment.size} / {ranks} = {held}"
    fault = f"is less than a quantisation block of {grain}" if held < grain else f"is no multiple of {grain}"
    way_out = "; expert parallelism keeps experts whole" if is_routed(rule) else ""
    name = _title(rule, segment)
    reason = f"{name}: {share} {fault}, its quantisation block ({rule.name}){way_out}"
    if held < grain:
        reason = f"{name}: {share} {fault} ({rule.name}){way_out}"
    return Obstacle("quantisation block", reason, name, held, grain)


def _title(rule: BoundRule, segment: BoundSegment) -> str:
    """What is counted, in the config's words: sizes that a family derives from others are spelled out."""
    sizes = load_family(rule.family).sizes
    return _NAME.sub(lambda word: sizes[word[0]].title if word[0] in sizes else word[0], segment.counted)


def _of(rule: BoundRule) -> str:
    return "the ranks that share an expert," if is_routed(rule) else "tp"


def _experts_title(rule: BoundRule) -> str:
    """What the config calls the number of experts."""
    family = load_family(rule.family)
    counted = rule.rule.shape[rule.rule.experts] if rule.rule.experts is not None else family.indices.get("expert")
    size = family.sizes.get(str(counted))
    return size.title if size else "num_experts"
