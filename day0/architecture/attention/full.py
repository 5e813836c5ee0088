"""Attention over keys and values of every head: all tokens, a sliding window, chunks, or an encoder's output."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from day0.architecture.attention import pairs
from day0.architecture.attention.base import Attention, CacheItem, Held, share


@dataclass(frozen=True)
class FullAttention(Attention):
    """Every token sees all before it. Query heads share key-value heads (MHA: none do; MQA: all share one).

    Ainslie et al. 2023 (arXiv:2305.13245). Keys and values of every token are cached, 2 vectors also where a model
    computes them from one matrix (Gemma 4: they are normed and rotated apart).
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    kind: ClassVar[str] = "full"
    name: ClassVar[str] = "full_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (CacheItem("keys and values", "cache", size=self.entry),)

    @property
    def entry(self) -> int:
        """Elements of one token's keys and values."""
        return self.kv_heads * (self.key_dim + self.value_dim)

    def flops(self, new: int, past: int) -> int:
        """Q·Kᵀ and the weights times V."""
        return self.pair_flops * pairs.causal(new, past)

    @property
    def pair_flops(self) -> int:
        """FLOPs for one query token and one key token."""
        return 2 * self.heads * (self.key_dim + self.value_dim)

    def read(self, new: int, past: int) -> dict[Held, int]:
        return {"cache": self.entry * (past + new)}

    def rank(self, tp: int) -> Self:
        """A rank has its share of the heads, and at least one key-value head (vLLM 0.32.0, models/llama.py)."""
        return dataclasses.replace(self, heads=share(self.heads, tp), kv_heads=share(self.kv_heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        found = {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.key_dim}
        return found if self.key_dim == self.value_dim else {**found, "value_dim": self.value_dim}


@dataclass(frozen=True)
class SlidingAttention(FullAttention):
    """Every token sees the last `window` tokens, itself among them; what has left the window is not kept.

    Beltagy et al. 2020 (arXiv:2004.05150). Between two steps `window - 1` tokens would do, which is what transformers
    keeps; here `window` counts, as the step that computes with the cache needs them.
    """

    window: int

    kind: ClassVar[str] = "sliding"
    name: ClassVar[str] = "sliding_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (CacheItem("keys and values", "cache", size=self.entry, window=self.window),)

    def flops(self, new: int, past: int) -> int:
        return self.pair_flops * pairs.windowed(new, past, self.window)

    def read(self, new: int, past: int) -> dict[Held, int]:
        """The first new token's window, and all after it."""
        return {"cache": self.entry * min(past + new, new + self.window - 1)}

    def engine_cache(self, tokens: int, batched: int, block: int) -> int:
        """Elements that vLLM reserves for a sequence of `tokens` tokens, while up to `batched` are computed at once."""
        return self.entry * block * self.cache[0].engine_blocks(tokens, batched, block)

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "window": self.window}


@dataclass(frozen=True)
class ChunkedAttention(SlidingAttention):
    """Every token sees the tokens of its own chunk of `window` tokens: Llama 4's local layers.

    transformers 5.24, masking_utils.py `chunked_overlay`; vLLM 0.32.0, `ChunkedLocalAttentionSpec`.
    """

    kind: ClassVar[str] = "chunked"
    name: ClassVar[str] = "chunked_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (CacheItem("keys and values", "cache", size=self.entry, window=self.window, chunked=True),)

    def flops(self, new: int, past: int) -> int:
        return self.pair_flops * pairs.chunked(new, past, self.window)

    def read(self, new: int, past: int) -> dict[Held, int]:
        """From the beginning of the first new token's chunk on."""
        return {"cache": self.entry * (past % self.window + new)}


@dataclass(frozen=True)
class CrossAttention(FullAttention):
    """Every token sees the output of an encoder, `encoder` tokens, whose keys and values are computed once.

    Vaswani et al. 2017 (arXiv:1706.03762); vLLM 0.32.0, `CrossAttentionSpec`.
    """

    encoder: int

    kind: ClassVar[str] = "cross"
    name: ClassVar[str] = "cross_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (CacheItem("encoder keys and values", "cache", constant=self.entry * self.encoder),)

    def flops(self, new: int, past: int) -> int:
        return self.pair_flops * new * self.encoder

    def read(self, new: int, past: int) -> dict[Held, int]:
        return {"cache": self.entry * self.encoder}

    def write(self, new: int, past: int) -> dict[Held, int]:
        """With the first tokens, once."""
        return {"cache": 0 if past else self.entry * self.encoder}

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "encoder": self.encoder}
