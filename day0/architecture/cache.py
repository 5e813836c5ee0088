"""What a model keeps for a sequence of T tokens: a + b · T bytes once its windows are full.

One copy of the model, or what one rank of a layout holds of it; ideal (every byte counted once), or as the engine
allocates it (engine_cache.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from day0.architecture.attention.base import Attention, CacheItem, Held
from day0.architecture.dtypes import BYTES, full_name
from day0.architecture.engine_cache import EngineCache, allocated
from day0.architecture.parallel import Sizes
from day0.architecture.structure import Structure
from day0.errors import InputError

#: Keys under which configs say the dtype of recurrent states (Nemotron 3, Qwen3.5).
STATE_KEYS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


@dataclass(frozen=True)
class CacheDtypes:
    """What everything that is kept is held in: names of dtypes.BYTES, for latent caches `fp8_ds_mla` too."""

    cache: str = "bfloat16"
    index: str = "bfloat16"
    state: str = "float32"
    conv: str = "bfloat16"

    def of(self, held: Held) -> str:
        found: str = getattr(self, held)
        return found


def dtypes_of(structure: Structure, cache: str = "bfloat16", index: str = "bfloat16") -> CacheDtypes:
    """Dtypes for a model: recurrent states as its config says, else float32; a convolution's inputs as activations.

    Raises:
        InputError: the config's dtype for states is not known; names the key.
    """
    config = structure.config
    conv = config.dtype if config.dtype in BYTES else "bfloat16"
    for key in STATE_KEYS:
        value = config.text.get(key)
        if value is None or value == "auto":
            continue
        name = full_name(value) if isinstance(value, str) else ""
        if name not in BYTES:
            raise InputError(f"config.json: {key} is {str(value)[:40]!r}; it must be one of {', '.join(BYTES)}")
        return CacheDtypes(cache, index, name, conv)
    return CacheDtypes(cache, index, conv=conv)


@dataclass(frozen=True)
class LayerCache:
    """The cache of some layers of one kind. Amounts are for all of them together."""

    attention: Attention
    layers: tuple[int, ...]
    mtp: bool
    dtypes: CacheDtypes
    dcp: int = 1
    """Ranks that share the tokens of what grows with the length."""

    @property
    def name(self) -> str:
        """As reports call it."""
        return f"mtp_{self.attention.name}" if self.mtp else self.attention.name

    @property
    def slope(self) -> Fraction:
        """Bytes that one more token costs once the windows are full."""
        return sum((self._slope(item) for item in self.attention.cache), Fraction(0))

    @property
    def bytes_per_token(self) -> int | float:
        return plain(self.slope)

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes that a sequence costs whatever its length: full windows, states, inputs of convolutions."""
        return sum(self._fixed(item) for item in self.attention.cache)

    def bytes(self, tokens: int) -> int:
        """Bytes for one sequence of `tokens` tokens."""
        return len(self.layers) * sum(self._item(item, tokens) for item in self.attention.cache)

    def _item(self, item: CacheItem, tokens: int) -> int:
        dtype, entries = self.dtypes.of(item.held), item.entries(tokens)
        if item.window is None:
            entries = -(-entries // self.dcp)
        return item.constant_bytes(dtype) + item.entry_bytes(dtype) * entries

    def _slope(self, item: CacheItem) -> Fraction:
        """b of one item, of all the layers."""
        if item.window is not None:
            return Fraction(0)
        return len(self.layers) * Fraction(item.entry_bytes(self.dtypes.of(item.held)), item.every * self.dcp)

    def _fixed(self, item: CacheItem) -> int:
        """a of one item, of all the layers."""
        dtype = self.dtypes.of(item.held)
        return len(self.layers) * (item.constant_bytes(dtype) + item.entry_bytes(dtype) * (item.window or 0))

    def as_json(self) -> dict[str, Any]:
        """For scripts: the kind, how many layers, its sizes, its own a and b, and those of each thing that is kept."""
        return {
            "kind": self.name,
            "layers": len(self.layers),
            **self.attention.sizes,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_sequence": self.bytes_per_sequence,
            "items": [
                {
                    "what": item.what,
                    "dtype": self.dtypes.of(item.held),
                    "bytes_per_token": plain(self._slope(item)),
                    "bytes_per_sequence": self._fixed(item),
                }
                for item in self.attention.cache
            ],
        }


@dataclass(frozen=True)
class ModelCache:
    """The cache of a model, or of what one rank holds of it."""

    parts: tuple[LayerCache, ...]
    layers: int
    """Decoder layers of the whole model."""

    @property
    def slope(self) -> Fraction:
        """Bytes that one more token costs once the windows are full, exactly."""
        return sum((part.slope for part in self.parts), Fraction(0))

    @property
    def bytes_per_token(self) -> int | float:
        return plain(self.slope)

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes that a sequence costs whatever its length."""
        return sum(part.bytes_per_sequence for part in self.parts)

    def bytes(self, tokens: int) -> int:
        """Bytes for one sequence of `tokens` tokens."""
        return sum(part.bytes(tokens) for part in self.parts)

    def rank(self, sizes: Sizes, stage: tuple[int, int] | None = None) -> ModelCache:
        """What the rank that holds most has of it.

        Args:
            sizes: heads are divided over `tp`; of what grows with the length each of `dcp` ranks holds its share of
                the tokens, which the layout must allow: as many ranks as hold the same heads, or a multiple of it.
            stage: the layers of its pipeline stage, first and one past the last; None: all. Multi-token prediction is
                on the stage with the last layer.
        """
        first, end = stage or (0, self.layers)
        found = []
        for part in self.parts:
            held = tuple(layer for layer in part.layers if first <= layer < end)
            if part.mtp:
                held = part.layers if end == self.layers else ()
            if held:
                found.append(replace(part, attention=part.attention.rank(sizes.tp), layers=held, dcp=sizes.dcp))
        return replace(self, parts=tuple(found))

    def engine(self, tokens: int, page_tokens: int, batched: int) -> EngineCache:
        """What vLLM reserves for one sequence of `tokens` tokens.

        Args:
            page_tokens: tokens of a page (`--block-size`).
            batched: tokens of the sequence that are computed at once: the prefill chunk; 1 where it only decodes.
        """
        return allocated(
            ((part.attention, len(part.layers), part.dtypes.of, part.dcp) for part in self.parts),
            tokens,
            page_tokens,
            batched,
        )

    def engine_bytes(self, tokens: int, page_tokens: int, batched: int) -> int:
        """Bytes of `engine`."""
        return self.engine(tokens, page_tokens, batched).bytes

    def fragmentation(self, tokens: int, page_tokens: int, batched: int) -> int:
        """Bytes that the engine reserves for one sequence beyond those it needs."""
        return self.engine_bytes(tokens, page_tokens, batched) - self.bytes(tokens)


def cache_of(structure: Structure, dtypes: CacheDtypes, mtp: bool = False) -> ModelCache:
    """The cache of one copy of a model; with `mtp` the multi-token prediction layers' too.

    Raises:
        InputError: something cannot be held in the dtype given for it.
    """
    cache = ModelCache(tuple(_parts(structure, dtypes, mtp)), structure.layers)
    cache.bytes(1)  # refuses dtypes that do not fit
    return cache


def element_bytes(structure: Structure, dtypes: CacheDtypes) -> dict[Held, float]:
    """Bytes of an element of what is cached, its scales among them."""
    kinds: tuple[Held, ...] = ("cache", "index", "state", "conv")
    found: dict[Held, float] = {held: float(BYTES.get(dtypes.of(held), 1)) for held in kinds}
    for entry in structure.attention:
        for item in entry.attention.cache:
            if item.size and not entry.mtp:
                found[item.held] = item.entry_bytes(dtypes.of(item.held)) / item.size
    return found


def _parts(structure: Structure, dtypes: CacheDtypes, mtp: bool) -> Iterable[LayerCache]:
    for held in structure.attention:
        if mtp or not held.mtp:
            yield LayerCache(held.attention, held.layers, held.mtp, dtypes)


def plain(value: Fraction) -> int | float:
    """A number as JSON has it."""
    return value.numerator if value.denominator == 1 else float(value)
