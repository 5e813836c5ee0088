"""What divides and what does not: the named constraints of a layout, as vLLM has them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from day0.architecture.config import ModelConfig

#: vLLM pads the vocabulary to a multiple of this before it divides it (vocab_parallel_embedding.py).
VOCAB_PADDING = 64


@dataclass(frozen=True)
class Sizes:
    """A layout's parallel sizes."""

    tp: int
    pp: int
    ep: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Obstacle:
    """Why sizes are impossible: `dimension` of `size` cannot be divided by `divisor` (None: nothing is divided)."""

    reason: str
    dimension: str
    size: int
    divisor: int | None


def padded_vocab(vocab_size: int) -> int:
    return -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING


def obstacles(config: ModelConfig, sizes: Sizes) -> list[Obstacle]:
    """Everything about a model that forbids these sizes, whatever the memory.

    Fewer key-value heads than ranks are no obstacle where the heads divide the ranks: each head is then copied.
    """
    found = []
    tp, vocab = sizes.tp, padded_vocab(config.vocab_size)
    for dimension, size, note in (
        ("num_attention_heads", config.heads, ""),
        ("intermediate_size", config.intermediate_size, ""),
        ("vocab_size", vocab, f" (vocab_size {config.vocab_size}, padded to a multiple of {VOCAB_PADDING})"),
    ):
        if size % tp:
            found.append(Obstacle(f"{dimension} {size}{note} is not divisible by tp {tp}", dimension, size, tp))
    kv_heads = config.kv_heads
    if kv_heads >= tp and kv_heads % tp:
        reason = f"num_key_value_heads {kv_heads} is not divisible by tp {tp}"
        found.append(Obstacle(reason, "num_key_value_heads", kv_heads, tp))
    elif kv_heads < tp and tp % kv_heads:
        reason = f"tp {tp} is no multiple of num_key_value_heads {kv_heads}, so the heads cannot be copied evenly"
        found.append(Obstacle(reason, "num_key_value_heads", kv_heads, tp))
    if sizes.pp > config.layers:
        reason = f"num_hidden_layers {config.layers} is less than pp {sizes.pp}: a stage would be empty"
        found.append(Obstacle(reason, "num_hidden_layers", config.layers, sizes.pp))
    if sizes.ep > 1:
        reason = f"ep {sizes.ep} needs experts to divide, and the model has none"
        found.append(Obstacle(reason, "num_experts", 0, sizes.ep))
    return found


def stage_layers(layers: int, pp: int, stage: int) -> int:
    """How many layers a pipeline stage holds.

    What does not divide goes one layer each to the stages before the last, backwards (vLLM 0.32.0,
    distributed/utils.py `get_pp_indices`): 61 layers at pp 4 are 15, 15, 16, 15.
    """
    return layers // pp + (1 if pp - 1 - layers % pp <= stage < pp - 1 else 0)


def pipeline_stages(layers: int, pp: int) -> tuple[tuple[int, int], ...]:
    """The layers of each stage, as (first, one past the last)."""
    counts = (stage_layers(layers, pp, stage) for stage in range(pp))
    return tuple(itertools.pairwise(itertools.accumulate(counts, initial=0)))
