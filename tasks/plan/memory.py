"""What a device holds under a layout, to the byte where it is tensors, by a stated formula where it is not."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field

from day0.architecture.attention.base import Attention
from day0.architecture.cache import ModelCache
from day0.architecture.engine_cache import allocated
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.structure import Structure
from day0.artifacts.plan import DeviceMemory
from day0.target import EngineMemory
from tasks.plan.activations import Activations
from tasks.plan.weights import Weights


@dataclass(frozen=True)
class Room:
    """What there is on each device, and how many of the devices share a node."""

    capacity: int
    on_node: int


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """Memory of one model on one target at given dtypes. Of a stage's ranks the first holds most, and is meant."""

    structure: Structure
    weights: Weights
    engine: EngineMemory
    activations: Activations
    kept: ModelCache
    """What a sequence keeps on one copy of the model."""
    _caches: dict[tuple[int, int, int, int, int], list[int]] = field(default_factory=dict)
    _weights: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)
    _fixed_bytes: dict[tuple[int, int, int, int, int, Room], tuple[list[int], int]] = field(default_factory=dict)
    _stages: dict[tuple[int, int, tuple[int, ...], int, int], int] = field(default_factory=dict)
    _ranks: dict[tuple[int, int], Attention] = field(default_factory=dict)
    _layer_counts: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def weight_bytes(self, sizes: Sizes) -> list[int]:
        """Of each stage."""
        key = (sizes.tp, sizes.pp, sizes.ep)
        if key not in self._weights:
            self._weights[key] = self.weights.stages(sizes)
        return self._weights[key]

    def cache(self, sizes: Sizes, context: int, sequences: int) -> list[int]:
        """Bytes that `sequences` sequences of `context` tokens take on a rank of each stage, in the engine's pages.

        The tokens of a pass are kept beyond a window until it is done. All sequences together have one pass of them:
        they are counted for the first sequence, and a page more for each of the others.
        """
        first = self._pages(sizes, context, self.engine.batched_tokens)
        if sequences == 1:
            return first
        others = self._pages(sizes, context, self.engine.kv_block_tokens)
        return [one + (sequences - 1) * other for one, other in zip(first, others, strict=True)]

    def _pages(self, sizes: Sizes, context: int, batched: int) -> list[int]:
        """Bytes of one sequence by stage, while so many tokens of it are computed at once."""
        key = (sizes.tp, sizes.pp, sizes.dcp, context, batched)
        if key not in self._caches:
            counts = self._counts(sizes.pp)
            self._caches[key] = [self._stage_cache(sizes, held, context, batched) for held in counts]
        return self._caches[key]

    def ideal_cache(self, sizes: Sizes, context: int) -> list[int]:
        """The same without pages: every byte that is used."""
        spans = pipeline_stages(self.structure.layers, sizes.pp)
        return [self.kept.rank(sizes, span).bytes(context) for span in spans]

    def null_block(self, sizes: Sizes) -> list[int]:
        """Bytes by stage of the one block that vLLM sets aside for padding and never hands out."""
        return self._pages(sizes, 1, 1)

    def _stage_cache(self, sizes: Sizes, counts: tuple[int, ...], context: int, batched: int) -> int:
        """Of a stage with so many layers of each kind; stages are few kinds, however many there are."""
        key = (sizes.tp, sizes.dcp, counts, context, batched)
        if key not in self._stages:
            entries = (
                (self._rank(at, sizes.tp), count, part.dtypes.of, sizes.dcp)
                for at, (part, count) in enumerate(zip(self.kept.parts, counts, strict=True))
                if count
            )
            self._stages[key] = allocated(entries, context, self.engine.kv_block_tokens, batched).bytes
        return self._stages[key]

    def _rank(self, at: int, tp: int) -> Attention:
        """The attention of a part of the cache on a rank."""
        if (at, tp) not in self._ranks:
            self._ranks[at, tp] = self.kept.parts[at].attention.rank(tp)
        return self._ranks[at, tp]

    def _counts(self, pp: int) -> list[tuple[int, ...]]:
        """How many layers of each part of the cache every stage has. Multi-token prediction is on the last."""
        if pp not in self._layer_counts:
            spans = pipeline_stages(self.structure.layers, pp)
            self._layer_counts[pp] = [
                tuple(
                    (len(part.layers) if end == self.structure.layers else 0)
                    if part.mtp
                    else bisect.bisect_left(part.layers, end) - bisect.bisect_left(part.layers, begin)
                    for part in self.kept.parts
                )
                for begin, end in spans
            ]
        return self._layer_counts[pp]

    def overhead(self, sizes: Sizes, room: Room) -> list[int]:
        """Bytes by stage that the engine takes or leaves alone beside weights, cache and activations."""
        parallel = sizes.devices > sizes.dp or sizes.stage_ranks > 1
        own = (self.engine.per_device_parallel if parallel else self.engine.per_device).value
        shared = math.ceil(self.engine.per_node.value / room.on_node)
        always = own + shared + math.ceil(self.engine.unused_share * room.capacity)
        padding = self.weights.engine_padding(sizes)
        return [always + added + null for added, null in zip(padding, self.null_block(sizes), strict=True)]

    def tokens(self, sequences: int) -> int:
        """Most tokens of one pass of a replica."""
        return max(self.engine.batched_tokens, sequences)

    def fits(self, sizes: Sizes, context: int, concurrency: int, room: Room) -> bool:
        """Whether the sequences, each of `context` tokens, have room on every device."""
        return self.total(sizes, context, concurrency, room) <= room.capacity

    def total(self, sizes: Sizes, context: int, concurrency: int, room: Room) -> int:
        """Bytes on the device that holds most; the quick way to `device(...).total`."""
        sequences = replica_sequences(concurrency, sizes)
        tokens = self.tokens(sequences)
        fixed, sampled = self._fixed(sizes, tokens, room)
        cache = self.cache(sizes, context, sequences)
        end = max(0, self.activations.end(sizes, tokens, sequences) - sampled)
        stages = [held + cached for held, cached in zip(fixed, cache, strict=True)]
        stages[-1] += end
        return max(stages)

    def _fixed(self, sizes: Sizes, tokens: int, room: Room) -> tuple[list[int], int]:
        """Bytes by stage of weights, overhead and the activations of the layers, and these last of the last stage."""
        key = (sizes.tp, sizes.pp, sizes.ep, sizes.dcp, tokens, room)
        if key not in self._fixed_bytes:
            layers = self.activations.layers(sizes, tokens)
            parts = zip(self.weight_bytes(sizes), self.overhead(sizes, room), layers, strict=True)
            self._fixed_bytes[key] = [sum(held) for held in parts], layers[-1]
        return self._fixed_bytes[key]

    def device(self, sizes: Sizes, context: int, concurrency: int, room: Room) -> DeviceMemory:
        """The worst device: the first rank of the stage that holds most."""
        sequences = replica_sequences(concurrency, sizes)
        tokens = self.tokens(sequences)
        weights, cache = self.weight_bytes(sizes), self.cache(sizes, context, sequences)
        live, overhead = self.activations.stages(sizes, tokens, sequences), self.overhead(sizes, room)
        totals = [weights[s] + cache[s] + live[s].reused + overhead[s] for s in range(sizes.pp)]
        worst = max(range(sizes.pp), key=totals.__getitem__)
        return DeviceMemory(
            weights=weights[worst],
            kv_cache=cache[worst],
            activations=live[worst].reused,
            activations_without_reuse=live[worst].separate,
            overhead=overhead[worst],
            total=totals[worst],
            capacity=room.capacity,
            fragmentation=cache[worst] - sequences * self.ideal_cache(sizes, context)[worst],
            stage=worst,
        )

    def longest_context(self, sizes: Sizes, concurrency: int, room: Room, most: int) -> int:
        """Tokens of the longest sequences that fit, at most `most`, in whole blocks below that; 0 where none does."""
        block = self.engine.kv_block_tokens
        if self.fits(sizes, most, concurrency, room):
            return most
        fitting, failing = 0, -(-most // block)
        while failing - fitting > 1:
            middle = (fitting + failing) // 2
            if self.fits(sizes, middle * block, concurrency, room):
                fitting = middle
            else:
                failing = middle
        return fitting * block


def replica_sequences(concurrency: int, sizes: Sizes) -> int:
    """Sequences of the data-parallel replica that has most."""
    return math.ceil(concurrency / sizes.dp)
