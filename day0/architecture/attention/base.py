"""What every kind of attention says of one layer and one sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Self

from day0.architecture.dtypes import BYTES, PACKED_LATENT
from day0.errors import InputError

Held = Literal["cache", "index", "state", "conv"]
"""Which dtype something is held in: that of the KV cache, of an indexer's keys, of recurrent states, of the inputs of a
short convolution. A plan or a profile says which dtype each is."""


@dataclass(frozen=True)
class CacheItem:
    """Something that a layer keeps for a sequence of T tokens: `constant + size · min(T // every, window)` elements."""

    what: str
    """For people: `keys and values`, `latent`, `indexer keys`, `state`, `convolution inputs`."""
    held: Held
    size: int = 0
    """Elements of one entry."""
    every: int = 1
    """One entry for so many tokens."""
    window: int | None = None
    """Most entries; None: no limit."""
    constant: int = 0
    """Elements whatever the length."""
    chunked: bool = False
    """The window begins anew when it is full, instead of sliding."""
    scale_block: int | None = None
    """In 8 bits one float32 scale stands beside so many elements of an entry; None: no scales in the cache."""
    packed: int | None = None
    """Bytes of one entry in vLLM's `fp8_ds_mla`; None: there is no such form of it."""

    @property
    def slope(self) -> Fraction:
        """Elements that one more token costs once the window is full."""
        return Fraction(0) if self.window is not None else Fraction(self.size, self.every)

    @property
    def fixed(self) -> int:
        """Elements that a sequence costs whatever its length, once the window is full."""
        return self.constant + (self.size * self.window if self.window is not None else 0)

    def entries(self, tokens: int) -> int:
        """Entries for a sequence of `tokens` tokens."""
        entries = tokens // self.every
        return entries if self.window is None else min(entries, self.window)

    def elements(self, tokens: int) -> int:
        """Elements for a sequence of `tokens` tokens."""
        return self.constant + self.size * self.entries(tokens)

    def entry_bytes(self, dtype: str) -> int:
        """Bytes of one entry, with the scales that stand beside it.

        Raises:
            InputError: it cannot be held in this dtype.
        """
        return self._bytes(self.size, dtype)

    def constant_bytes(self, dtype: str) -> int:
        """Bytes of what does not depend on the length."""
        return self.constant * _width(dtype, self.what) if self.constant else 0

    def bytes(self, tokens: int, dtype: str) -> int:
        """Bytes for a sequence of `tokens` tokens."""
        return self.constant_bytes(dtype) + self.entry_bytes(dtype) * self.entries(tokens)

    def _bytes(self, elements: int, dtype: str) -> int:
        if not elements:
            return 0
        if dtype == PACKED_LATENT:
            if self.packed is None:
                raise InputError(f"{PACKED_LATENT} is a form of latent caches, and {self.what} are none; choose fp8")
            return self.packed
        width = _width(dtype, self.what)
        scales = -(-elements // self.scale_block) * BYTES["float32"] if self.scale_block and width == 1 else 0
        return elements * width + scales

    def engine_blocks(self, tokens: int, batched: int, block: int) -> int:
        """Blocks of `block` tokens that vLLM reserves for it, while up to `batched` tokens are computed at once.

        vLLM 0.32.0, v1/kv_cache_interface.py (`max_admission_blocks_per_request`): past a sliding window tokens are
        freed only when their step is done, and the window may begin within a block.
        """
        if not self.size:
            return 1
        if self.window is None:
            return -(-tokens // block)
        if self.chunked:
            return -(-min(self.window + batched, tokens) // block)
        return -(-min(self.window - 1 + batched, tokens) // block) + 1


def _width(dtype: str, what: str) -> int:
    if dtype not in BYTES:
        raise InputError(f"{what} cannot be held as {dtype!r}; choose one of {', '.join(BYTES)}")
    return BYTES[dtype]


class Attention(ABC):
    """One layer's attention. Sizes are those of the whole layer; `rank(tp)` gives those of one tensor parallel rank.

    Subclasses are frozen dataclasses whose fields are the `sizes` of a family's `attention` entry; a field with a
    default may be left out there.
    """

    kind: ClassVar[str]
    """As in configs/families/."""
    name: ClassVar[str]
    """As reports call it: `full_attention`, …"""

    @property
    @abstractmethod
    def cache(self) -> tuple[CacheItem, ...]:
        """What is kept for a sequence."""

    @property
    def engine_extra(self) -> tuple[CacheItem, ...]:
        """What vLLM keeps besides, which the mathematics does not need."""
        return ()

    @abstractmethod
    def flops(self, new: int, past: int) -> int:
        """FLOPs of the core for `new` tokens of one sequence after `past`, causal, as engines compute it.

        The core is what is no matrix of the checkpoint: scores and weighted values, an indexer's scores, updates of
        states. A product of m × k by k × n is 2·m·k·n; softmax, activations, norms and short convolutions are left out.
        """

    @abstractmethod
    def read(self, new: int, past: int) -> dict[Held, int]:
        """Elements of the cache that such a pass over one sequence must read, by what they are held as: each once,
        what the pass itself writes among them."""

    def write(self, new: int, past: int) -> dict[Held, int]:
        """Elements of the cache that such a pass writes: the new tokens' entries, and states as a whole."""
        written: Counter[Held] = Counter()
        for item in self.cache:
            entries = (past + new) // item.every - past // item.every
            if item.window is not None:
                entries = min(entries, item.window)
            written[item.held] += item.constant + item.size * entries
        return dict(written)

    @abstractmethod
    def rank(self, tp: int) -> Self:
        """The attention of one of `tp` ranks, the one that holds most: heads divided, what is not divided kept."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """For reports: `heads`, `kv_heads`, `head_dim`, `window`, … as far as the kind has them."""


def share(count: int, ranks: int) -> int:
    """The most that one of `ranks` ranks has of something that is divided, and at least one of it."""
    return max(1, -(-count // ranks))
