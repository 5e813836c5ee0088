"""What every kind of attention says of one layer and one sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal, Self

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

    @property
    def slope(self) -> Fraction:
        """Elements that one more token costs once the window is full."""
        return Fraction(0) if self.window is not None else Fraction(self.size, self.every)

    @property
    def fixed(self) -> int:
        """Elements that a sequence costs whatever its length, once the window is full."""
        return self.constant + (self.size * self.window if self.window is not None else 0)

    def elements(self, tokens: int) -> int:
        """Elements for a sequence of `tokens` tokens."""
        entries = tokens // self.every
        return self.constant + self.size * (entries if self.window is None else min(entries, self.window))


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

    @abstractmethod
    def flops(self, new: int, past: int) -> int:
        """FLOPs of the core for `new` tokens of one sequence after `past`, causal, as engines compute it.

        The core is what is no matrix of the checkpoint: scores and weighted values, an indexer's scores, updates of
        states. A product of m × k by k × n is 2·m·k·n; softmax, activations and norms are left out.
        """

    @abstractmethod
    def read(self, new: int, past: int) -> dict[Held, int]:
        """Elements of the cache that such a pass over one sequence must read, by what they are held as."""

    @abstractmethod
    def rank(self, tp: int) -> Self:
        """The attention of one of `tp` ranks, the one that holds most: heads divided, what is not divided kept."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """For reports: `heads`, `kv_heads`, `head_dim`, `window`, … as far as the kind has them."""
