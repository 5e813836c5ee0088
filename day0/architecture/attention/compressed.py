"""DeepSeek V4's attention: a window of tokens, and all before it compressed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from day0.architecture.attention import pairs
from day0.architecture.attention.base import Attention, CacheItem, Held, share

_SCALE_BLOCK = 128


@dataclass(frozen=True)
class CompressedAttention(Attention):
    """One vector a token, which is key and value of all heads: the last `window` tokens as they are, and each `ratio`
    tokens before as one, of which an indexer chooses `topk` (ratio 4) or all count (ratio 128). No ratio: the window
    alone.

    deepseek-ai/DeepSeek-V4-Flash, inference/model.py; vLLM 0.32.0, models/deepseek_v4/attention.py. The vector and the
    indexer (on compressed keys of its own) are whole on every tensor parallel rank. The tokens of a group that is not
    full yet are no cache: they are the last ones, which the window has.
    """

    heads: int
    dim: int
    rope_dim: int
    window: int
    ratio: int = 0
    topk: int = 0
    index_heads: int = 0
    index_dim: int = 0

    kind: ClassVar[str] = "compressed"
    name: ClassVar[str] = "compressed_attention"

    @property
    def cache(self) -> tuple[CacheItem, ...]:
        # fp8_ds_mla: what is not rotated in 8 bits, one byte of scale for each 64 of it, filled up to 8, and what is
        # rotated in 16 bits: 512 elements are 584 bytes.
        plain = self.dim - self.rope_dim
        packed = plain + 8 * -(-plain // 512) + 2 * self.rope_dim
        found = [CacheItem("latent of the window", "cache", size=self.dim, window=self.window, packed=packed)]
        if self.ratio:
            found.append(CacheItem("compressed latent", "cache", size=self.dim, every=self.ratio, packed=packed))
        if self.ratio and self.index_heads:
            keys = CacheItem("indexer keys", "index", size=self.index_dim, every=self.ratio, scale_block=_SCALE_BLOCK)
            found.append(keys)
        return tuple(found)

    @property
    def engine_extra(self) -> tuple[CacheItem, ...]:
        """What the compressors of an entry and of an indexer's key have read of groups that are not full: a vector and
        its score for each token, of two groups where they overlap (models/deepseek_v4/compressor.py)."""
        if not self.ratio:
            return ()
        groups = 2 if self.ratio == 4 else 1
        dims = (self.dim, self.index_dim) if self.index_heads else (self.dim,)
        return tuple(
            CacheItem("compressor inputs", "state", size=2 * groups * dim, window=groups * self.ratio) for dim in dims
        )

    def flops(self, new: int, past: int) -> int:
        seen = pairs.windowed(new, past, self.window)
        scores = 0
        if self.ratio:
            seen += pairs.grouped(new, past, self.ratio, self.topk or None)
            scores = 2 * self.index_heads * self.index_dim * pairs.grouped(new, past, self.ratio)
        return 4 * self.heads * self.dim * seen + scores

    def read(self, new: int, past: int) -> dict[Held, int]:
        """The window, the chosen compressed entries (of many new tokens, all that may be), and the whole index."""
        tokens = past + new
        cached = min(tokens, new + self.window - 1)
        if not self.ratio:
            return {"cache": self.dim * cached}
        compressed = tokens // self.ratio
        cached += min(compressed, new * self.topk) if self.topk else compressed
        index: dict[Held, int] = {"index": self.index_dim * compressed} if self.index_heads else {}
        return {"cache": self.dim * cached, **index}

    def rank(self, tp: int) -> Self:
        return dataclasses.replace(self, heads=share(self.heads, tp))

    @property
    def sizes(self) -> dict[str, int]:
        found = {"heads": self.heads, "kv_heads": 1, "head_dim": self.dim, "window": self.window, "ratio": self.ratio}
        index = {"topk": self.topk, "index_heads": self.index_heads, "index_dim": self.index_dim}
        return {**found, **index} if self.index_heads else found
