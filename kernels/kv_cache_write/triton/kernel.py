"""Writing of a paged cache in Triton: keys and values in one launch, converted on the way where the cache is FP8."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: The largest float8_e4m3fn.
LARGEST = tl.constexpr(448.0)
#: Numbers of a tile: 16 for each of 128 threads.
_TILE = 2048


@triton.jit
def _codes(x, NATIVE: tl.constexpr):
    """The nearest float8_e4m3fn of float32, ties to even, at most 448; NaN stays. Not native: its bits, as uint8."""
    if NATIVE:  # which saturates
        return x.to(tl.float8e4nv)
    else:  # (Triton needs the branch: the types differ)
        x = tl.where(x > LARGEST, LARGEST, tl.where(x < -LARGEST, -LARGEST, x))
        bits = x.to(tl.uint32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # Below 2^-6 codes are 2^-9 apart, as floats are at 2^14; above, 20 bits are rounded off, the exponent shifted.
        small = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
        code = tl.where(size > 0x7F800000, 0x7F, tl.where(size < 0x3C800000, small, normal))
        return (code | (bits >> 24 & 0x80)).to(tl.uint8)


@triton.jit
def _entries(new, cache, scale, token, there, block, row, writing, first, heads, token_stride, head_stride, stride,
             cache_block, cache_row, cache_head, cache_stride, scale_stride, SIZE: tl.constexpr, TILE: tl.constexpr,
             SCALES: tl.constexpr, NATIVE: tl.constexpr):  # fmt: skip
    """TILE numbers, from the number `first` of a token on, of some tokens."""
    place = first + tl.arange(0, TILE)[None, :]
    head, within = place // SIZE, place % SIZE
    source = new + token * token_stride + head.to(tl.int64) * head_stride + within * stride
    # Padding's numbers are read, too: to know which they are, each read would wait for the token's slot.
    numbers = tl.load(source, there & (head < heads), 0.0, eviction_policy="evict_first")
    inside = writing & (head < heads)
    target = cache + block * cache_block + row * cache_row + head.to(tl.int64) * cache_head + within * cache_stride
    if SCALES == "none":
        tl.store(target, numbers, inside)
    else:
        # A product with the reciprocal costs a tenth of a quotient, and differs from it next to ties only.
        if SCALES == "one":
            inverse = tl.math.div_rn(1.0, tl.load(scale))
        else:
            inverse = tl.math.div_rn(1.0, tl.load(scale + head * scale_stride, head < heads, 1.0))
        tl.store(target, _codes(numbers.to(tl.float32) * inverse, NATIVE), inside)


#: Numbers of tokens and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["tokens", "heads", "slot_stride", "key_scale_stride", "value_scale_stride"])
def _tokens(key, value, key_cache, value_cache, slots, key_scale, value_scale, tokens, heads, block_size, slot_stride,
            key_token, key_head, key_stride, value_token, value_head, value_stride,
            key_block, key_row, key_cache_head, key_cache_stride,
            value_block, value_row, value_cache_head, value_cache_stride, key_scale_stride, value_scale_stride,
            KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr,
            SCALES: tl.constexpr, NATIVE: tl.constexpr):  # fmt: skip
    """TILE numbers of the keys, or then of the values, of TOKENS tokens."""
    key_tiles = tl.cdiv(heads * KEY_SIZE, TILE)
    tiles = key_tiles + tl.cdiv(heads * VALUE_SIZE, TILE)
    tile = tl.program_id(0) % tiles
    token = tl.program_id(0) // tiles * TOKENS + tl.arange(0, TOKENS)[:, None]
    there = token < tokens
    slot = tl.load(slots + token.to(tl.int64) * slot_stride, there, -1).to(tl.int32)
    block, row = (slot // block_size).to(tl.int64), (slot % block_size).to(tl.int64)
    token = token.to(tl.int64)
    if tile < key_tiles:
        _entries(key, key_cache, key_scale, token, there, block, row, slot >= 0, tile * TILE, heads, key_token,
                 key_head, key_stride, key_block, key_row, key_cache_head, key_cache_stride, key_scale_stride, KEY_SIZE,
                 TILE, SCALES, NATIVE)  # fmt: skip
    else:
        _entries(value, value_cache, value_scale, token, there, block, row, slot >= 0, (tile - key_tiles) * TILE, heads,
                 value_token, value_head, value_stride, value_block, value_row, value_cache_head, value_cache_stride,
                 value_scale_stride, VALUE_SIZE, TILE, SCALES, NATIVE)  # fmt: skip


def run(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> None:
    """Write key and value, (tokens, heads, head size), to their slots of the caches, (blocks, block size, heads, …)."""
    tokens, heads = slots.shape[0], key.shape[1]
    scaled = key_scale is not None
    if scaled != (value_scale is not None):
        raise ValueError("kv_cache_write: keys and values both have a scale, or neither has one")
    for name, new, cache, scale in (("key", key, key_cache, key_scale), ("value", value, value_cache, value_scale)):
        cached = torch.float8_e4m3fn if scaled else new.dtype
        if new.shape[:2] != (tokens, heads) or cache.shape[2:] != new.shape[1:] or cache.dtype != cached:
            raise ValueError(
                f"kv_cache_write: {name} {tuple(new.shape)} {new.dtype} of {tokens} tokens does not go into a cache "
                f"{tuple(cache.shape)} {cache.dtype}"
            )
        if scale is not None and (scale.numel() not in (1, heads) or scale.dtype != torch.float32):
            raise ValueError(f"kv_cache_write: {name}_scale must be float32 of one number or of {heads}")
    if key_cache.shape[:2] != value_cache.shape[:2]:
        raise ValueError("kv_cache_write: the caches of keys and values have different blocks")
    if not tokens or not heads:
        return
    native = not scaled or has_native_fp8(key.device)
    caches = (key_cache, value_cache) if native else (key_cache.view(torch.uint8), value_cache.view(torch.uint8))
    scales = (key_scale, value_scale) if scaled else (slots, slots)  # a place for what is not used
    scale_strides = [0 if scale.numel() == 1 else scale.stride(0) for scale in scales]
    # Where rows follow one another through all blocks, a slot needs no division.
    apart = any(cache.stride(0) != cache.shape[1] * cache.stride(1) for cache in caches)
    cache_strides = [((*c.stride(),) if apart else (c.stride(1), 0, *c.stride()[2:])) for c in caches]
    together, tile = configuration(tokens, heads * max(key.shape[2], value.shape[2]))
    tiles = sum(triton.cdiv(heads * new.shape[2], tile) for new in (key, value))
    grid = (triton.cdiv(tokens, together) * tiles,)
    sizes = (tokens, heads, key_cache.shape[1] if apart else 1, slots.stride(0))
    strides = (*key.stride(), *value.stride(), *cache_strides[0], *cache_strides[1], *scale_strides)
    by = "none" if not scaled else "one" if scales[0].numel() == scales[1].numel() == 1 else "by head"
    options = {"KEY_SIZE": key.shape[2], "VALUE_SIZE": value.shape[2], "TOKENS": together, "TILE": tile, "SCALES": by}
    with torch.accelerator.device_index(key.device.index):
        _tokens[grid](key, value, *caches, slots, *scales, *sizes, *strides, **options, NATIVE=native,
                      num_warps=_warps(together, tile))  # fmt: skip


def configuration(tokens: int, numbers: int) -> tuple[int, int]:
    """Tokens of a tile, and how many numbers of each."""
    tile = min(_TILE, triton.next_power_of_2(numbers))
    together = _TILE // tile if tokens >= 4096 else 1
    return together, tile


def _warps(together: int, tile: int) -> int:
    return max(1, min(4, together * tile // 256))


def has_native_fp8(device: torch.device) -> bool:
    """Whether Triton converts to float8_e4m3fn there: on NVIDIA from 8.9 on. Elsewhere codes are made of bits."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


_TYPES = ("*bf16", "*fp16", "*fp32")


def _is_native(architecture: str) -> bool:
    return architecture.startswith("sm_") and int(architecture[3:]) >= 89


def AHEAD(architecture: str) -> list[dict[str, object]]:
    """Heads of 64, 128 and 256, plain and FP8, decode and prefill, of caches whose rows follow one another."""
    native = _is_native(architecture)
    entries = []
    ones = dict.fromkeys(("block_size", "key_stride", "value_stride", "key_cache_stride", "value_cache_stride"), 1)
    fixed = ("tokens", "heads", "slot_stride", "key_scale_stride", "value_scale_stride")
    numbers = (*fixed, *(f"{of}_{what}" for of in ("key", "value") for what in _STRIDES))
    for type in _TYPES:
        for scales in ("none", "one", "by head"):
            cached = type if scales == "none" else "*fp8e4nv" if native else "*u8"
            data = {"key": type, "value": type, "key_cache": cached, "value_cache": cached, "slots": "*i64"}
            data |= dict.fromkeys(("key_scale", "value_scale"), "*i64" if scales == "none" else "*fp32")
            for size, tokens in ((64, 4096), (128, 64), (128, 4096), (256, 4096)):
                together, tile = configuration(tokens, 8 * size)
                options = {"TOKENS": together, "TILE": tile, "num_warps": _warps(together, tile)}
                options |= {
                    "KEY_SIZE": size,
                    "VALUE_SIZE": size,
                    "SCALES": scales,
                    "NATIVE": native or scales == "none",
                }
                entries.append(
                    {
                        "name": f"{scales.replace(' ', '-')}-{type[1:]}-{size}-{tokens}",
                        "function": _tokens,
                        "signature": data | dict.fromkeys(numbers, "i32"),
                        "config": ones | options,
                        "divisible": (*data, *(name for name in numbers if name not in fixed)),
                    }
                )
    return entries


_STRIDES = ("token", "head", "block", "row", "cache_head")
