"""Bytes of activations at the peak of a pass, by the lifetimes of what a layer's operators write."""

from __future__ import annotations

from dataclasses import dataclass, field

from day0.architecture.block import alike, end_ops, layer_ops
from day0.architecture.block_parts import Load
from day0.architecture.lifetimes import pools
from day0.architecture.parallel import Sizes
from day0.architecture.pipeline import pipeline_stages
from day0.architecture.structure import Structure


@dataclass(frozen=True)
class StageActivations:
    """Of one rank of a pipeline stage, bytes."""

    reused: int
    """With memory used again once it is free: the worst layer, or what comes after the last one."""
    separate: int
    """With memory of its own for everything that the stage's layers write."""


@dataclass(frozen=True, eq=False)
class Activations:
    """Of one model. Layers that are alike are looked at once for each tensor and expert parallel size."""

    structure: Structure
    width: int
    """Bytes of an element of what flows between operators."""
    past: int
    """Tokens that the longest sequence may have cached before a pass."""
    prompt_logits: int
    """Rows of logits where a request asks for its prompt's log-probabilities."""
    _layers: dict[tuple[int, int, int], tuple[list[int], list[int]]] = field(default_factory=dict)
    _ends: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)

    def stages(self, sizes: Sizes, tokens: int, sequences: int) -> list[StageActivations]:
        """For `tokens` tokens of a replica in one pass, and `sequences` sequences."""
        end = self._end(sizes, tokens, sequences)
        layers = self.layers(sizes, tokens)
        _, separate = self._of_layers(sizes, tokens)
        spans = pipeline_stages(self.structure.layers, sizes.pp)
        found = [
            StageActivations(reused, sum(separate[begin:until]))
            for reused, (begin, until) in zip(layers, spans, strict=True)
        ]
        last = found[-1]
        found[-1] = StageActivations(max(last.reused, end[0]), last.separate + end[1])
        return found

    def layers(self, sizes: Sizes, tokens: int) -> list[int]:
        """Bytes with reuse by stage, for its layers alone."""
        reused, _ = self._of_layers(sizes, tokens)
        spans = pipeline_stages(self.structure.layers, sizes.pp)
        return [max(reused[begin:end], default=0) for begin, end in spans]

    def end(self, sizes: Sizes, tokens: int, sequences: int) -> int:
        """Bytes with reuse of what comes after the last layer."""
        return self._end(sizes, tokens, sequences)[0]

    def _of_layers(self, sizes: Sizes, tokens: int) -> tuple[list[int], list[int]]:
        """Of each layer, with and without reuse."""
        key = (sizes.tp, sizes.ep, tokens)
        if key not in self._layers:
            reused, separate = [0] * self.structure.layers, [0] * self.structure.layers
            load = Load(tokens, past=self.past, width=self.width)
            for layers in alike(self.structure, (0, self.structure.layers)):
                pool = pools(layer_ops(self.structure, layers[0], sizes, load))
                for layer in layers:
                    reused[layer], separate[layer] = pool.static_pool, pool.without_reuse
            self._layers[key] = reused, separate
        return self._layers[key]

    def _end(self, sizes: Sizes, tokens: int, sequences: int) -> tuple[int, int]:
        """With and without reuse: sampling for every sequence, or logits for a prompt's tokens, whichever is more."""
        key = (sizes.tp, tokens, sequences)
        if key not in self._ends:
            sampled = Load(tokens, rows=sequences, width=self.width, sorted_sampling=True)
            scored = Load(tokens, rows=self.prompt_logits, width=self.width)
            found = [pools(end_ops(self.structure, sizes, load), keep=("hidden",)) for load in (sampled, scored)]
            self._ends[key] = max(pool.static_pool for pool in found), max(pool.without_reuse for pool in found)
        return self._ends[key]
