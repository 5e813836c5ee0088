"""MiniMax-M3's attention: keys and values of every head, of which an indexer chooses blocks of tokens."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from day0.architecture.attention import pairs
from day0.architecture.attention.base import CacheItem, Held, share
from day0.architecture.attention.full import FullAttention


@dataclass(frozen=True)
class BlockSparseAttention(FullAttention):
    """Grouped-query attention to `topk` blocks of `block` tokens, the nearest among them, which `index_heads` queries
    choose by their scores with one cached key of `index_dim` elements a token.

    MiniMax-M3, sparse_attention_config; vLLM 0.32.0, models/minimax_m3/common/indexer.py. The index queries are divided
    over tensor parallel ranks as the key-value heads are; the index key is whole on each, and has no scales in 8 bits.
    """

    block: int
    topk: int
    index_heads: int
    index_dim: int

    kind: ClassVar[str] = "block_sparse"
    name: ClassVar[str] = "block_sparse_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (*super().cache, CacheItem("indexer keys", "index", size=self.index_dim))

    @property
    def chosen(self) -> int:
        """Most tokens that one sees."""
        return self.block * self.topk

    def flops(self, new: int, past: int) -> int:
        scores = 2 * self.index_heads * self.index_dim * pairs.causal(new, past)
        return self.pair_flops * pairs.windowed(new, past, self.chosen) + scores

    def read(self, new: int, past: int) -> dict[Held, int]:
        """The chosen blocks (of many new tokens, all that may be), and the whole index."""
        tokens = past + new
        return {"cache": self.entry * min(tokens, new * self.chosen), "index": self.index_dim * tokens}

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(super().rank(tp), index_heads=share(self.index_heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        index = {"index_heads": self.index_heads, "index_dim": self.index_dim}
        return {**super().sizes, "block": self.block, "topk": self.topk, **index}
