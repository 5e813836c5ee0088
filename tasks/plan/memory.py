"""What a device holds under a layout, to the byte where it is tensors, by a stated formula where it is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from day0.architecture.dtypes import BYTES
from day0.architecture.pipeline import stage_layers
from day0.architecture.structure import Part, Structure
from day0.artifacts.plan import DeviceMemory
from day0.target import EngineMemory
from tasks.plan.constraints import Sizes


@dataclass(frozen=True)
class MemoryModel:
    """Memory of one model on one target at given dtypes."""

    structure: Structure
    engine: EngineMemory
    weight_dtype: str
    kv_dtype: str
    stored_head: bool = False
    """Tied by its config, but with an output head of its own in the checkpoint: both are served."""

    def weights(self, sizes: Sizes, stage: int) -> int:
        """Bytes of weights on each rank of a pipeline stage.

        The first stage holds the embedding, the last one the final norm and the output head; where these are tied,
        the last stage of several holds the table again, as vLLM's Llama does.
        """
        last = stage == sizes.pp - 1
        elements = stage_layers(self.structure.config.layers, sizes.pp, stage) * self._layer_elements(sizes.tp)
        table_again = self.structure.config.tied_embeddings and (sizes.pp > 1 or self.stored_head)
        for part in self._ends:
            copies = int(stage == 0 if part.stage == "first" else last)
            copies += part.kind == "embedding" and last and table_again
            elements += copies * self.rank_elements(part, sizes.tp)
        return elements * BYTES[self.weight_dtype]

    def kv_bytes_per_token(self, sizes: Sizes, stage: int) -> int:
        """Bytes that one token of one sequence takes on each rank of a stage."""
        layers = stage_layers(self.structure.config.layers, sizes.pp, stage)
        return layers * self.structure.attention.rank_cache_per_token(sizes.tp) * BYTES[self.kv_dtype]

    def kv_cache(self, sizes: Sizes, stage: int, context: int, concurrency: int) -> int:
        """Bytes of the cache for the sequences of one replica, each in whole blocks of tokens."""
        blocks = math.ceil(context / self.engine.kv_block_tokens)
        tokens = replica_sequences(concurrency, sizes) * blocks * self.engine.kv_block_tokens
        return tokens * self.kv_bytes_per_token(sizes, stage)

    def null_block(self, sizes: Sizes, stage: int) -> int:
        """Bytes of the one block that vLLM sets aside for padding and never hands out."""
        return self.engine.kv_block_tokens * self.kv_bytes_per_token(sizes, stage)

    def activations(self, sizes: Sizes, stage: int, concurrency: int) -> int:
        """Bytes at the peak of a pass over `batched_tokens` tokens.

        The residual stream and the normed input (2 · hidden), beside the larger of the layer's two halves: attention
        (q, k, v and its output) or the gated MLP (gate and up, and their product), for each token; on the last stage
        also logits over the whole vocabulary, once in the weights' dtype and twice in float32 for sampling, for each
        sequence, or for the prompt tokens whose log-probabilities are asked for where these are more. For Llama-3-8B
        with 8,192 tokens and 256 rows of logits that is 1.09 GiB; vLLM measured 1.26 (vllm-project/vllm#10511).
        """
        config, tp = self.structure.config, sizes.tp
        heads, kv_heads = config.heads // tp, max(1, config.kv_heads // tp)
        attention = (2 * heads + 2 * kv_heads) * config.head_dim
        mlp = 3 * config.intermediate_size // tp
        sequences = replica_sequences(concurrency, sizes)
        tokens = max(self.engine.batched_tokens, sequences)
        width = BYTES[self.weight_dtype]
        peak = tokens * (2 * config.hidden_size + max(attention, mlp)) * width
        if stage == sizes.pp - 1:
            peak += (
                max(sequences, self.engine.prompt_logits) * self.structure.padded_vocab * (width + 2 * BYTES["float32"])
            )
        return peak

    def overhead(self, sizes: Sizes, stage: int, capacity: int, on_node: int) -> int:
        """Bytes that the engine takes or leaves alone beside weights, cache and activations."""
        parallel = sizes.tp * sizes.pp > 1
        own = (self.engine.per_device_parallel if parallel else self.engine.per_device).value
        shared = math.ceil(self.engine.per_node.value / on_node)
        return own + shared + math.ceil(self.engine.unused_share * capacity) + self.null_block(sizes, stage)

    def device(self, sizes: Sizes, context: int, concurrency: int, capacity: int, on_node: int) -> DeviceMemory:
        """The worst device: all ranks of a stage hold the same, so it is the stage that holds most."""
        stages = []
        for stage in self.telling_stages(sizes.pp):
            weights = self.weights(sizes, stage)
            cache = self.kv_cache(sizes, stage, context, concurrency)
            activations = self.activations(sizes, stage, concurrency)
            overhead = self.overhead(sizes, stage, capacity, on_node)
            stages.append(
                DeviceMemory(
                    weights=weights,
                    kv_cache=cache,
                    activations=activations,
                    overhead=overhead,
                    total=weights + cache + activations + overhead,
                    capacity=capacity,
                )
            )
        return max(stages, key=lambda memory: memory.total)

    def longest_context(self, sizes: Sizes, concurrency: int, capacity: int, on_node: int) -> int:
        """Tokens of the longest sequences that fit, in whole blocks; 0 where none does."""
        blocks = []
        for stage in self.telling_stages(sizes.pp):
            free = capacity - self.weights(sizes, stage) - self.activations(sizes, stage, concurrency)
            free -= self.overhead(sizes, stage, capacity, on_node)
            blocks.append(max(0, free) // self.kv_cache(sizes, stage, self.engine.kv_block_tokens, concurrency))
        return min(blocks) * self.engine.kv_block_tokens

    def rank_elements(self, part: Part, tp: int) -> int:
        """Elements of one tensor that each of `tp` ranks holds, as the family's rule splits it."""
        if part.split.how == "vocab":
            return self.structure.padded_vocab // tp * math.prod(part.shape[1:])
        if part.split.how not in ("column", "row"):
            return part.numel
        held = max(1, part.units // tp) if part.split.replicate else part.units // tp
        return part.numel // part.units * held

    def telling_stages(self, pp: int) -> list[int]:
        """The stages among which the worst is: the first, the last, and of the others one with most layers."""
        return sorted({0, max(0, pp - 2), pp - 1})

    def _layer_elements(self, tp: int) -> int:
        return sum(self.rank_elements(part, tp) for part in self._first_layer)

    @cached_property
    def _first_layer(self) -> Sequence[Part]:
        """The layers of a dense model are all alike."""
        return [part for part in self.structure.parts if part.layer == 0]

    @cached_property
    def _ends(self) -> Sequence[Part]:
        return [part for part in self.structure.parts if part.layer is None]


def replica_sequences(concurrency: int, sizes: Sizes) -> int:
    """Sequences of the data-parallel replica that has most."""
    return math.ceil(concurrency / sizes.dp)
