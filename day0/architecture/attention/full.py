"""Full attention: every token sees all before it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from day0.architecture.attention.base import Attention, CacheItem, Held


@dataclass(frozen=True)
class FullAttention(Attention):
    """Query heads that share key-value heads (MHA: none do; MQA: all share one).

    Ainslie et al. 2023 (arXiv:2305.13245). Keys and values of every token are cached.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    kind: ClassVar[str] = "full"
    name: ClassVar[str] = "full_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (CacheItem("keys and values", "cache", size=self.kv_heads * (self.key_dim + self.value_dim)),)

    def flops(self, new: int, past: int) -> int:
        """Q·Kᵀ and the weights times V: query i sees the past and i + 1 new tokens."""
        pairs = new * past + new * (new + 1) // 2
        return 2 * self.heads * (self.key_dim + self.value_dim) * pairs

    def read(self, new: int, past: int) -> dict[Held, int]:
        return {"cache": self.cache[0].size * (past + new)}

    def rank(self, tp: int) -> Self:
        """A rank has its share of the heads, and at least one key-value head."""
        return dataclasses.replace(self, heads=-(-self.heads // tp), kv_heads=max(1, -(-self.kv_heads // tp)))

    @property
    def sizes(self) -> dict[str, int]:
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.key_dim}
