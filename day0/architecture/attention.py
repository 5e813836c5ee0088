"""Kinds of attention: what a layer caches, and what it computes. One class each.

All sizes are for one layer and one sequence; a cache of T tokens takes `cache_fixed + cache_per_token · T` elements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Full attention whose query heads share key-value heads (MHA: none do; MQA: all share one).

    Ainslie et al. 2023 (arXiv:2305.13245). Keys and values of every token are cached.
    """

    heads: int
    kv_heads: int
    head_dim: int

    kind = "full_attention"
    cache_fixed = 0
    """Elements whatever the length: there is no window and no recurrent state."""

    @property
    def cache_per_token(self) -> int:
        """Elements: a key and a value of `head_dim` for each key-value head."""
        return self.kv_heads * 2 * self.head_dim

    def rank_cache_per_token(self, tp: int) -> int:
        """Elements on one of `tp` ranks: its share of the heads, at least one."""
        return max(1, -(-self.kv_heads // tp)) * 2 * self.head_dim

    def scores_flops(self, query_tokens: int, past_tokens: int) -> int:
        """FLOPs of Q·Kᵀ and of the weights times V, causal: query i sees the past and i + 1 new tokens.

        Each pair costs 2 · head_dim for either product and each query head; softmax is left out.
        """
        pairs = query_tokens * past_tokens + query_tokens * (query_tokens + 1) // 2
        return 4 * self.heads * self.head_dim * pairs
