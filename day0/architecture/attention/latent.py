"""Multi-head latent attention, dense and sparse."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from day0.architecture.attention import pairs
from day0.architecture.attention.base import Attention, CacheItem, Held, share

#: Passes of at most so many new tokens of a sequence take the absorbed way: vLLM 0.32.0 on Hopper,
#: v1/attention/backends/mla/flashmla.py `reorder_batch_threshold`.
ABSORBED_TOKENS = 128

_SCALE_BLOCK = 128


@dataclass(frozen=True)
class LatentAttention(Attention):
    """Keys and values of all heads come from one cached latent of `latent` elements and `rope` rotated ones.

    DeepSeek-AI 2024 (arXiv:2405.04434). The latent is one "head" that all query heads share, so every tensor parallel
    rank holds all of it.

    Absorbed (decode), each head's query is taken into the latent space, and scores and values are computed there:
    2·H·(2·latent + rope) a pair. Otherwise (prefill) keys and values are expanded: 2·H·(nope + rope + v) a pair. The
    products with `kv_b_proj` are a matrix of the checkpoint's, of the same cost for a new token either way, and counted
    with the matrices; but what a prefill after a cached past expands again of that past is counted here.
    """

    heads: int
    latent: int
    """`kv_lora_rank`"""
    rope_dim: int
    nope_dim: int
    value_dim: int

    kind: ClassVar[str] = "latent"
    name: ClassVar[str] = "latent_attention"

    @property
    def entry(self) -> CacheItem:
        # fp8_ds_mla (vLLM 0.32.0, v1/attention/backends/mla/flashmla_sparse.py): the latent in 8 bits, a float32 scale
        # for each 128 of it, and the rotated elements in 16 bits. 512 and 64 are 656 bytes.
        packed = self.latent + 4 * -(-self.latent // _SCALE_BLOCK) + 2 * self.rope_dim
        return CacheItem("latent", "cache", size=self.latent + self.rope_dim, packed=packed)

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        return (self.entry,)

    @property
    def absorbed_pair(self) -> int:
        """FLOPs for one query token and one cached token."""
        return 2 * self.heads * (2 * self.latent + self.rope_dim)

    def flops(self, new: int, past: int) -> int:
        if new <= ABSORBED_TOKENS:
            return self.absorbed_pair * pairs.causal(new, past)
        expanded = 2 * past * self.latent * self.heads * (self.nope_dim + self.value_dim)
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim) * pairs.causal(new, past) + expanded

    def read(self, new: int, past: int) -> dict[Held, int]:
        return {"cache": self.entry.size * (past + new)}

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(self, heads=share(self.heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "heads": self.heads,
            "latent": self.latent,
            "rope_dim": self.rope_dim,
            "nope_dim": self.nope_dim,
            "value_dim": self.value_dim,
        }


@dataclass(frozen=True)
class SparseLatentAttention(LatentAttention):
    """Latent attention to the `topk` tokens that an indexer chooses (DeepSeek Sparse Attention).

    DeepSeek-AI 2025, DeepSeek-V3.2-Exp; deepseek-ai/DeepSeek-V3.2-Exp, inference/model.py `Indexer`. `index_heads`
    queries are scored against one cached key of `index_dim` elements a token, over the whole length. Engines compute
    such attention absorbed, prefill too, and the indexer whole on every rank (vLLM 0.32.0, models/deepseek_v32/
    attention.py). Layers that use the choice of a layer before them (GLM-5.2) have no indexer: leave its sizes out.
    """

    topk: int
    index_heads: int = 0
    index_dim: int = 0

    kind: ClassVar[str] = "sparse_latent"
    name: ClassVar[str] = "sparse_latent_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        if not self.index_heads:
            return (self.entry,)
        return (self.entry, CacheItem("indexer keys", "index", size=self.index_dim, scale_block=_SCALE_BLOCK))

    def flops(self, new: int, past: int) -> int:
        scores = 2 * self.index_heads * self.index_dim * pairs.causal(new, past)
        return self.absorbed_pair * pairs.windowed(new, past, self.topk) + scores

    def read(self, new: int, past: int) -> dict[Held, int]:
        """The chosen tokens (of many new ones, all that may be), and the whole index."""
        chosen = min(past + new, new * self.topk)
        return {"cache": self.entry.size * chosen, **self._index(past + new)}

    def _index(self, tokens: int) -> dict[Held, int]:
        return {"index": self.index_dim * tokens} if self.index_heads else {}

    @property
    def sizes(self) -> dict[str, int]:
        index = {"index_heads": self.index_heads, "index_dim": self.index_dim} if self.index_heads else {}
        return {**super().sizes, "topk": self.topk, **index}
