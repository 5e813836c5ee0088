"""The cache as vLLM allocates it for one sequence, in whole pages.

vLLM 0.32.0, v1/core/kv_cache_utils.py (`get_kv_cache_groups`, `_max_memory_usage_bytes_from_groups`) and
platforms/interface.py (`_align_hybrid_block_size`), in its default order of the cache's dimensions. Where all layers
need the same tokens each has its own pages. Where they do not (full beside sliding, attention beside states) all pages
are made equally large, and layers are taken together in groups of equal number, filled up with layers that do not
exist: one page of a group is one page of each of its layers. DeepSeek V4's caches are packed: a block holds a page of
each layer of a group, whatever their sizes, and is as large as the largest group.

Without prefix caching a sequence has one state a layer; drafting and prefix caching have more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from day0.architecture.attention.base import Attention, CacheItem, Held
from day0.architecture.dtypes import PACKED_LATENT

#: Pages of latent caches beside states have a multiple of so many tokens (`_align_hybrid_block_size`).
LATENT_ALIGNMENT = 128

#: Bytes that pages of DeepSeek V4's caches are a multiple of (models/deepseek_v4/attention.py), in fp8_ds_mla or not.
PACKED_ALIGNMENT, COMPRESSED_ALIGNMENT = 576, 512

#: Tokens that its pages have a multiple of (models/deepseek_v4/sparse_mla.py).
COMPRESSED_BLOCK = 256

#: Tokens of a page of its windows (v1/attention/backends/mla/sparse_swa.py), and of what its compressors have read, by
#: how many tokens they look back on (models/deepseek_v4/compressor.py).
WINDOW_BLOCK = 64
COMPRESSOR_BLOCKS = {8: 4, 128: 8}

#: A group is as large as the largest kind of layers, not the smallest, where there are less than so many times more.
_ONE_GROUP = 1.5


@dataclass(frozen=True)
class EngineCache:
    """What is reserved for one sequence."""

    bytes: int
    page_tokens: int
    """Tokens of an attention page, after it was made as large as a state."""
    page_bytes: int
    """Bytes of the largest page of one layer."""


@dataclass(frozen=True)
class _Pages:
    """Pages of `count` layers that need the same: `blocks` each, of `bytes` bytes and `block` tokens."""

    item: CacheItem
    count: int
    bytes: int
    block: int
    dcp: int

    @property
    def kind(self) -> tuple[bool, int | None, bool]:
        """Layers of one kind need the same tokens of a sequence."""
        return not self.item.size, self.item.window, self.item.chunked

    def blocks(self, tokens: int, batched: int) -> int:
        if self.item.size and self.item.window is None:
            return -(-tokens // (self.block * self.dcp))
        return self.item.engine_blocks(tokens, batched, self.block)


def allocated(
    layers: Iterable[tuple[Attention, int, Callable[[Held], str], int]], tokens: int, page_tokens: int, batched: int
) -> EngineCache:
    """What is reserved for one sequence of `tokens` tokens.

    Args:
        layers: attention, how many layers have it, the dtype of what is held, and how many ranks share its tokens.
        page_tokens: tokens of a page as configured.
        batched: tokens of the sequence that are computed at once.
    """
    listed = list(layers)
    compressed = any(attention.kind == "compressed" for attention, *_ in listed)
    block = -(-page_tokens // COMPRESSED_BLOCK) * COMPRESSED_BLOCK if compressed else page_tokens
    found = [pages for entry in listed for pages in _pages(*entry, block)]
    if not found:
        return EngineCache(0, block, 0)
    found, block = _beside_states(found, block)
    if compressed:
        total = _packed(found, tokens, batched)
    elif len({pages.kind for pages in found}) == 1:
        total = sum(pages.count * pages.bytes * pages.blocks(tokens, batched) for pages in found)
    else:
        total = _grouped(found, tokens, batched)
    return EngineCache(total, block, max(pages.bytes for pages in found))


def _pages(attention: Attention, count: int, dtype_of: Callable[[Held], str], dcp: int, block: int) -> Iterable[_Pages]:
    states = [item for item in attention.cache if not item.size]
    if states:  # one page for all
        size = sum(item.constant_bytes(dtype_of(item.held)) for item in states)
        yield _Pages(states[0], count, size, block, 1)
    compressed = attention.kind == "compressed"
    alignment = 1
    if compressed:
        alignment = PACKED_ALIGNMENT if dtype_of("cache") == PACKED_LATENT else COMPRESSED_ALIGNMENT
    for item in attention.cache:
        if item.size:
            own = WINDOW_BLOCK if compressed and item.window is not None else block
            yield _Pages(item, count, _aligned(item, own, dtype_of, alignment), own, dcp)
    for item in attention.engine_extra:
        own = COMPRESSOR_BLOCKS.get(item.window or 0, 4)
        yield _Pages(item, count, _aligned(item, own, dtype_of, alignment), own, 1)


def _aligned(item: CacheItem, block: int, dtype_of: Callable[[Held], str], alignment: int) -> int:
    size = item.entry_bytes(dtype_of(item.held)) * (block // item.every)
    return -(-size // alignment) * alignment


def _beside_states(found: list[_Pages], block: int) -> tuple[list[_Pages], int]:
    """Attention pages as large as a state at least, and states filled up to them."""
    attention = [pages for pages in found if pages.item.size]
    states = [pages for pages in found if not pages.item.size]
    if not attention or not states:
        return found, block
    largest = max(attention, key=lambda pages: pages.bytes)
    token = largest.bytes // block
    step = max(block, LATENT_ALIGNMENT) if largest.item.packed is not None else block
    needed = step * -(-max(pages.bytes for pages in states) // (step * token))
    block = max(block, needed)
    grown = [replace(pages, block=block, bytes=pages.bytes // pages.block * block) for pages in attention]
    page = max(pages.bytes for pages in grown)
    return [*grown, *(replace(pages, bytes=page) for pages in states)], block


def _grouped(found: list[_Pages], tokens: int, batched: int) -> int:
    """All pages equally large; groups of equally many layers."""
    page = max(pages.bytes for pages in found)
    kinds: dict[tuple[object, ...], list[_Pages]] = {}
    for pages in found:
        times = page // pages.bytes if page % pages.bytes == 0 and pages.item.size else 1
        same = replace(pages, bytes=page, block=pages.block * times)
        kinds.setdefault((*same.kind, same.block, same.item.size), []).append(same)
    counts = {key: sum(pages.count for pages in held) for key, held in kinds.items()}
    fewest, most = min(counts.values()), max(counts.values())
    group = most if most < fewest * _ONE_GROUP else fewest
    blocks = sum(-(-counts[key] // group) * held[0].blocks(tokens, batched) for key, held in kinds.items())
    return page * group * blocks


def _packed(found: list[_Pages], tokens: int, batched: int) -> int:
    """Pages of different sizes in one block (`_get_packed_kv_cache_groups`): all that need the same tokens and have
    pages of as many are a group, or several where that wastes less; a block is as large as the largest group."""
    buckets: dict[tuple[object, ...], dict[int, int]] = {}
    blocks: dict[tuple[object, ...], int] = {}
    for pages in found:
        key = (*pages.kind, pages.block)
        sizes = buckets.setdefault(key, {})
        sizes[pages.bytes] = sizes.get(pages.bytes, 0) + pages.count
        blocks[key] = pages.blocks(tokens, batched)
    even = {key: max(sizes.values()) for key, sizes in buckets.items() if len(set(sizes.values())) == 1}
    least = max((count for key, count in even.items() if len(buckets[key]) > 1), default=0)
    each = _least_padding(list(even.values()), least) if least else 0
    groups = {key: -(-even[key] // each) if each and key in even else 1 for key in buckets}
    widest = max(
        sum(-(-count // groups[key]) * size for size, count in sizes.items()) for key, sizes in buckets.items()
    )
    return widest * sum(groups[key] * blocks[key] for key in buckets)


def _least_padding(counts: list[int], least: int) -> int:
    """The size of groups, at least `least`, with which the fewest places stay empty; of several the largest."""
    return min(range(least, max(counts) + 1), key=lambda size: (sum(-count % size for count in counts), -size))
