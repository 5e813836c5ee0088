"""Rotary embedding in Triton: query and key in one launch, each number read once, in float32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Pairs of a tile: 16 for each of its 128 threads.
_PAIRS = 2048


@triton.jit
def _cosines(cosines, pair, ROTARY: tl.constexpr):
    cos = tl.load(cosines + pair, pair < ROTARY // 2, 0.0).to(tl.float32)
    return cos, tl.load(cosines + ROTARY // 2 + pair, pair < ROTARY // 2, 0.0).to(tl.float32)


@triton.jit
def _turned(heads, out, cosines, token, first, count, token_stride, head_stride, size, ROTARY: tl.constexpr,
            PAIRS: tl.constexpr, REST: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr):  # fmt: skip
    """The heads from `first` on of one token; REST: numbers past the rotary size, or 0."""
    head = first + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    inside = (head < count) & (pair < ROTARY // 2)
    source = heads + token * token_stride + head * head_stride
    target = out + token * count * size + head * size
    # The heads are asked for before the cosines, whose place waits for the token's position.
    if INTERLEAVED:
        place = tl.arange(0, 2 * PAIRS)[None, :]
        both = (head < count) & (place < ROTARY)
        pairs = tl.load(source + place, both, 0.0, eviction_policy="evict_first").to(tl.float32)
        cos, sin = _cosines(cosines, pair, ROTARY)
        left, right = tl.split(tl.reshape(pairs, [HEADS, PAIRS, 2]))
        turned = tl.join(left * cos - right * sin, right * cos + left * sin)
        tl.store(target + place, tl.reshape(turned, [HEADS, 2 * PAIRS]).to(out.dtype.element_ty), both)
    else:
        left = tl.load(source + pair, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
        right = tl.load(source + ROTARY // 2 + pair, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
        cos, sin = _cosines(cosines, pair, ROTARY)
        tl.store(target + pair, (left * cos - right * sin).to(out.dtype.element_ty), inside)
        tl.store(target + ROTARY // 2 + pair, (right * cos + left * sin).to(out.dtype.element_ty), inside)
    if REST:
        place = ROTARY + tl.arange(0, REST)[None, :]
        past = (head < count) & (place < size)
        tl.store(target + place, tl.load(source + place, past, 0.0, eviction_policy="evict_first"), past)


#: Numbers of heads and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["position_stride", "query_heads", "key_heads"])
def _tokens(positions, query, key, cos_sin, query_out, key_out, position_stride, query_token, query_head, key_token,
            key_head, cos_sin_stride, query_heads, key_heads, size, ROTARY: tl.constexpr, PAIRS: tl.constexpr,
            REST: tl.constexpr, QUERY_HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
            INTERLEAVED: tl.constexpr):  # fmt: skip
    """Some heads of one token: QUERY_HEADS of the query or, in the last tiles of a token, KEY_HEADS of the key."""
    across = tl.cdiv(query_heads, QUERY_HEADS)
    tiles = across + tl.cdiv(key_heads, KEY_HEADS)
    tile = tl.program_id(0) % tiles
    token = (tl.program_id(0) // tiles).to(tl.int64)
    position = tl.load(positions + token * position_stride)
    cosines = cos_sin + position.to(tl.int64) * cos_sin_stride
    if tile < across:
        _turned(query, query_out, cosines, token, tile * QUERY_HEADS, query_heads, query_token, query_head, size,
                ROTARY, PAIRS, REST, QUERY_HEADS, INTERLEAVED)  # fmt: skip
    else:
        _turned(key, key_out, cosines, token, (tile - across) * KEY_HEADS, key_heads, key_token, key_head, size,
                ROTARY, PAIRS, REST, KEY_HEADS, INTERLEAVED)  # fmt: skip


def run(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key, (tokens, heads, head size), turned by their tokens' positions."""
    tokens, query_heads, size = query.shape
    key_heads, rotary = key.shape[1], cos_sin.shape[-1]
    if key.shape[0] != tokens or key.shape[2] != size or positions.shape != (tokens,) or key.dtype != query.dtype:
        raise ValueError(
            f"rotary: query {tuple(query.shape)} {query.dtype}, key {tuple(key.shape)} {key.dtype} and positions "
            f"{tuple(positions.shape)} do not belong together"
        )
    if rotary % 2 or rotary > size:
        raise ValueError(f"rotary: the rotary size is {rotary}, and must be even and at most the head size, {size}")
    outputs = tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key))
    if not tokens or not size or not query_heads + key_heads:
        return outputs
    query, key, cos_sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, cos_sin))
    pairs, chosen = configuration(rotary, query_heads, key_heads)
    rest = triton.next_power_of_2(size - rotary) if size > rotary else 0
    grid = (tokens * (triton.cdiv(query_heads, chosen[0]) + triton.cdiv(key_heads, chosen[1])),)
    strides = (positions.stride(0), query.stride(0), query.stride(1), key.stride(0), key.stride(1), cos_sin.stride(0))
    options = {"ROTARY": rotary, "PAIRS": pairs, "REST": rest, "INTERLEAVED": interleaved}
    with torch.accelerator.device_index(query.device.index):
        _tokens[grid](positions, query, key, cos_sin, *outputs, *strides, query_heads, key_heads, size, **options,
                      QUERY_HEADS=chosen[0], KEY_HEADS=chosen[1], num_warps=4)  # fmt: skip
    return outputs


def configuration(rotary: int, query_heads: int, key_heads: int) -> tuple[int, tuple[int, int]]:
    """Pairs of a head as a tile has them, and how many heads of the query and of the key a tile has."""
    pairs = max(1, triton.next_power_of_2(rotary // 2))
    most = max(1, _PAIRS // pairs)
    heads = [max(1, min(most, triton.next_power_of_2(count))) for count in (query_heads, key_heads)]
    return pairs, (heads[0], heads[1])


_TYPES = ("*bf16", "*fp16", "*fp32")

_STRIDES = ("query_token", "query_head", "key_token", "key_head", "cos_sin_stride", "size")
#: Rotary size, head size, heads of query and key, interleaved: Llama 3, gpt-oss, DeepSeek-V3, a quarter of the head.
_KINDS = [(128, 128, 64, 8, False), (64, 64, 64, 8, False), (64, 192, 128, 1, True), (32, 128, 32, 8, False)]


def _ahead(type: str, rotary: int, size: int, query_heads: int, key_heads: int, interleaved: bool) -> dict[str, object]:
    pairs, heads = configuration(rotary, query_heads, key_heads)
    data = dict.fromkeys(("query", "key", "query_out", "key_out"), type) | {"positions": "*i64", "cos_sin": "*fp32"}
    return {
        "name": f"{rotary}-of-{size}{'-interleaved' if interleaved else ''}-{type[1:]}",
        "function": _tokens,
        "signature": data | dict.fromkeys((*_STRIDES, "position_stride", "query_heads", "key_heads"), "i32"),
        "config": {
            "ROTARY": rotary,
            "PAIRS": pairs,
            "REST": triton.next_power_of_2(size - rotary) if size > rotary else 0,
            "INTERLEAVED": interleaved,
            "QUERY_HEADS": heads[0],
            "KEY_HEADS": heads[1],
            "num_warps": 4,
        },
        "divisible": (*data, *_STRIDES),
    }


AHEAD = [_ahead(type, *kind) for type in _TYPES for kind in _KINDS]
