"""Decode attention over a paged cache in Triton: each sequence in splits, whose results a second kernel joins.

The query heads that share a key head are the rows of one product, so that keys and values are read once. How many
splits there are is told by shapes alone, and where they lie by a sequence's length: no launch waits for the device,
and the joining sums in a fixed order, so that results are the same each time.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

#: Bytes of shared memory of a program, by architecture, and of those that are not named.
_SHARED = {"sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}
_LEAST_SHARED = 65536
LOG2E = tl.constexpr(1.4426950408889634)
#: Tokens that a split has at least: fewer are not worth what it costs to write and join its result.
_LEAST = 256
#: Splits of all sequences and heads for each multiprocessor: several turns, so that the last is a small part.
_TURNS = 12


@triton.jit
def _half(codes, NATIVE: tl.constexpr):
    """Float8_e4m3fn as float16, exactly. Not native: of their bits, as uint8."""
    if NATIVE:
        return codes.to(tl.float16)
    else:
        wide = codes.to(tl.uint16)
        size = ((wide & 0x7F) << 7).to(tl.float16, bitcast=True) * 256.0
        size = tl.where((wide & 0x7F) == 0x7F, float("nan"), size).to(tl.float16)
        return tl.where(wide >= 0x80, -size, size)


@triton.jit
def _read(cache, block, row, seen, head_offset, block_stride, row_stride, stride, SIZE: tl.constexpr,
          SLOTS: tl.constexpr):  # fmt: skip
    """Some tokens' keys or values, (tokens, SLOTS); of tokens that are not seen and past SIZE: zeros."""
    column = tl.arange(0, SLOTS)
    place = cache + head_offset + (block * block_stride + row * row_stride)[:, None] + (column * stride)[None, :]
    if SIZE == SLOTS:
        return tl.load(place, seen[:, None], 0.0, eviction_policy="evict_first")
    else:
        return tl.load(place, seen[:, None] & (column < SIZE)[None, :], 0.0, eviction_policy="evict_first")


@triton.jit
def _attended(query, by, key_cache, value_cache, table, begin, end, key_head, value_head, key_block, key_row,
              key_stride, value_block, value_row, value_stride, table_stride, soft_cap, factor,
              KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, KEY_SLOTS: tl.constexpr, VALUE_SLOTS: tl.constexpr,
              BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, CAPPED: tl.constexpr, FP8: tl.constexpr,
              NATIVE: tl.constexpr, FACTOR: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """The tokens from `begin` to `end`: the largest score, the sum of weights and the weighted sum of values, in two.

    Scores are query · key * by, to base 2. A weight is the sum of two numbers of the values' dtype, because one alone
    has no more digits than the result; their sums stay apart, so that an infinite value is not taken from itself.
    """
    HEADS: tl.constexpr = query.shape[0]
    most = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    coarse = tl.zeros([HEADS, VALUE_SLOTS], tl.float32)
    fine = tl.zeros([HEADS, VALUE_SLOTS], tl.float32)
    for first in tl.range(begin, end, TOKENS, num_stages=STAGES):
        token = first + tl.arange(0, TOKENS)
        seen = token < end
        block = tl.load(table + (token // BLOCK_SIZE) * table_stride, seen, 0).to(tl.int64)
        row = (token % BLOCK_SIZE).to(tl.int64)
        keys = _read(key_cache, block, row, seen, key_head, key_block, key_row, key_stride, KEY_SIZE, KEY_SLOTS)
        values = _read(
            value_cache, block, row, seen, value_head, value_block, value_row, value_stride, VALUE_SIZE, VALUE_SLOTS
        )
        if FP8:
            keys = _half(keys, NATIVE).to(query.dtype)
            values = _half(values, NATIVE).to(query.dtype)
            if FACTOR:
                values = tl.where(seen[:, None], values.to(tl.float32) * factor, 0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * by
        if CAPPED:
            scaled = scores * (1.0 / LOG2E) / soft_cap
            scores = soft_cap * LOG2E * (1.0 - 2.0 / (tl.exp(2.0 * scaled) + 1.0))
        scores = tl.where(seen[None, :], scores, float("-inf"))
        highest = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - base[:, None])
        faded = tl.exp2(most - base)
        total = total * faded + tl.sum(weights, 1)
        upper = weights.to(query.dtype)
        coarse = tl.dot(upper, values, coarse * faded[:, None], input_precision="ieee")
        if query.dtype != tl.float32:
            lower = (weights - upper.to(tl.float32)).to(query.dtype)
            fine = tl.dot(lower, values, fine * faded[:, None])
        most = highest
    both = tl.where(tl.abs(coarse) < float("inf"), coarse + fine, coarse)
    return most, total, both


#: Numbers of sequences and the like are no reason to compile anew.
_FIXED = (
    "window",
    "splits",
    "heads",
    "group",
    "table_sequence",
    "length_stride",
    "key_scale_stride",
    "value_scale_stride",
)


@triton.jit(do_not_specialize=_FIXED)
def _split(query, key_cache, value_cache, table, lengths, key_scale, value_scale, partial, highest, totals, out,
           scale, soft_cap, window, splits, heads, group, query_sequence, query_head, query_stride,
           key_block, key_row, key_head, key_stride, value_block, value_row, value_head, value_stride,
           table_sequence, table_stride, length_stride, key_scale_stride, value_scale_stride,
           KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, KEY_SLOTS: tl.constexpr, VALUE_SLOTS: tl.constexpr,
           HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, CAPPED: tl.constexpr,
           WINDOWED: tl.constexpr, FP8: tl.constexpr, NATIVE: tl.constexpr, WHOLE: tl.constexpr,
           STAGES: tl.constexpr):  # fmt: skip
    """One split of one sequence, for HEADS of the query heads of one key head. WHOLE: it is the only split."""
    parts = tl.cdiv(group, HEADS)
    head = tl.program_id(0) % heads
    part = tl.program_id(0) // heads % parts
    split = tl.program_id(0) // (heads * parts) % splits
    sequence = (tl.program_id(0) // (heads * parts * splits)).to(tl.int64)
    length = tl.load(lengths + sequence * length_stride).to(tl.int32)
    start = tl.maximum(length - window, 0) if WINDOWED else 0
    share = tl.cdiv(tl.cdiv(length - start, splits), TOKENS) * TOKENS
    begin = start + split * share
    end = tl.minimum(begin + share, length)

    member = part * HEADS + tl.arange(0, HEADS)
    query_at = head * group + member
    column = tl.arange(0, KEY_SLOTS)
    place = query + sequence * query_sequence + query_at[:, None] * query_head + column[None, :] * query_stride
    asked = tl.load(place, (member < group)[:, None] & (column < KEY_SIZE)[None, :], 0.0)
    by = scale * LOG2E
    factor = 1.0
    special = False
    if FP8:
        by = by * tl.load(key_scale + head * key_scale_stride)
        factor = tl.load(value_scale + head * value_scale_stride)
        special = (factor != factor) | (tl.abs(factor) == float("inf"))
        if asked.dtype == tl.bfloat16:
            # Codes are float16 exactly; the query is after a product with a power of two, but for what is far below.
            wide = asked.to(tl.float32)
            bits = tl.max(tl.max(wide.to(tl.int32, bitcast=True) & 0x7F800000, 1), 0)
            bits = tl.where((bits == 0x7F800000) | (bits < 0x10000000), 0x3F800000, bits)
            power = bits.to(tl.float32, bitcast=True)
            asked = (wide * (0x7F000000 - bits).to(tl.float32, bitcast=True)).to(tl.float16)
            by = by * power
    table += sequence * table_sequence
    key_at, value_at = head.to(tl.int64) * key_head, head.to(tl.int64) * value_head
    if special:
        most, total, summed = _attended(
            asked, by, key_cache, value_cache, table, begin, end, key_at, value_at, key_block, key_row, key_stride,
            value_block, value_row, value_stride, table_stride, soft_cap, factor, KEY_SIZE, VALUE_SIZE, KEY_SLOTS,
            VALUE_SLOTS, BLOCK_SIZE, TOKENS, CAPPED, FP8, NATIVE, True, 1,
        )  # fmt: skip
        factor = 1.0
    else:
        most, total, summed = _attended(
            asked, by, key_cache, value_cache, table, begin, end, key_at, value_at, key_block, key_row, key_stride,
            value_block, value_row, value_stride, table_stride, soft_cap, factor, KEY_SIZE, VALUE_SIZE, KEY_SLOTS,
            VALUE_SLOTS, BLOCK_SIZE, TOKENS, CAPPED, FP8, NATIVE, False, STAGES,
        )  # fmt: skip
    summed = summed * factor
    result = sequence * heads * group + query_at
    column = tl.arange(0, VALUE_SLOTS)
    inside = (member < group)[:, None] & (column < VALUE_SIZE)[None, :]
    if WHOLE:
        summed = tl.where(length > 0, summed / total[:, None], 0.0)
        tl.store(out + result[:, None] * VALUE_SIZE + column[None, :], summed.to(out.dtype.element_ty), inside)
    else:
        place = result * splits + split
        tl.store(partial + place[:, None] * VALUE_SIZE + column[None, :], summed, inside)
        tl.store(highest + place, most, member < group)
        tl.store(totals + place, total, member < group)


@triton.jit(do_not_specialize=["splits", "query_heads", "length_stride"])
def _join(partial, highest, totals, lengths, out, splits, query_heads, length_stride, VALUE_SIZE: tl.constexpr,
          COLUMNS: tl.constexpr, SPLITS: tl.constexpr):  # fmt: skip
    """COLUMNS numbers of one query head: its splits, weighted by how far their largest score is below the largest."""
    across = tl.cdiv(VALUE_SIZE, COLUMNS)
    result = (tl.program_id(0) // across).to(tl.int64)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    split = tl.arange(0, SPLITS)
    place = result * splits + split
    most = tl.load(highest + place, split < splits, float("-inf"))
    total = tl.load(totals + place, split < splits, 0.0)
    inside = (split < splits)[:, None] & (column < VALUE_SIZE)
    summed = tl.load(partial + place[:, None] * VALUE_SIZE + column, inside, 0.0)
    base = tl.max(most, 0)
    weight = tl.exp2(most - tl.where(base == float("-inf"), 0.0, base))
    answer = tl.sum(summed * weight[:, None], 0)[None, :] / tl.sum(total * weight, 0)
    length = tl.load(lengths + (result // query_heads) * length_stride)
    answer = tl.where(length > 0, answer, 0.0)
    tl.store(out + result * VALUE_SIZE + column, answer.to(out.dtype.element_ty), column < VALUE_SIZE)


def run(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    window: int | None,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> torch.Tensor:
    """The outputs, (sequences, query heads, value size), for query (sequences, query heads, key size), of its dtype."""
    sequences, query_heads, key_size = query.shape
    _, block_size, heads, value_size = value_cache.shape
    scaled = key_scale is not None
    cached = torch.float8_e4m3fn if scaled else query.dtype
    _check(query, key_cache, value_cache, block_table, lengths, cached)
    if scaled != (value_scale is not None):
        raise ValueError("paged_decode_attention: keys and values both have a scale, or neither has one")
    for given in (key_scale, value_scale) if scaled else ():
        if given.numel() not in (1, heads) or given.dtype != torch.float32:
            raise ValueError(f"paged_decode_attention: a scale must be float32 of one number or of {heads}")
    out = torch.empty(sequences, query_heads, value_size, dtype=query.dtype, device=query.device)
    if not out.numel():
        return out
    native = not scaled or has_native_fp8(query.device)
    if not native:
        key_cache, value_cache = key_cache.view(torch.uint8), value_cache.view(torch.uint8)
    scales = (key_scale, value_scale) if scaled else (lengths, lengths)  # a place for what is not used
    scale_strides = [0 if given.numel() == 1 or not scaled else given.stride(0) for given in scales]
    group = query_heads // heads
    options = configuration(group, key_size, value_size, query.dtype, shared_memory(query.device))
    most = block_table.shape[1] * block_size
    tokens = min(most, window) if window is not None else most
    splits = splits_of(sequences * heads * triton.cdiv(group, options["HEADS"]), tokens, _processors(query.device))
    options |= {
        "KEY_SIZE": key_size,
        "VALUE_SIZE": value_size,
        "BLOCK_SIZE": block_size,
        "CAPPED": soft_cap is not None,
    }
    options |= {"WINDOWED": window is not None, "FP8": scaled, "NATIVE": native, "WHOLE": splits == 1}
    partial, highest, totals = out, out, out
    if splits > 1:
        rows = sequences * query_heads * splits
        partial = torch.empty(rows * value_size, dtype=torch.float32, device=query.device)
        highest, totals = torch.empty(2, rows, dtype=torch.float32, device=query.device)
    strides = (*query.stride(), *key_cache.stride(), *value_cache.stride(), *block_table.stride(), lengths.stride(0))
    grid = (sequences * heads * triton.cdiv(group, options["HEADS"]) * splits,)
    with torch.accelerator.device_index(query.device.index):
        _split[grid](
            query, key_cache, value_cache, block_table, lengths, *scales, partial, highest, totals, out, scale,
            soft_cap or 0.0, window or 0, splits, heads, group, *strides, *scale_strides, **options,
        )  # fmt: skip
        if splits > 1:
            columns = min(32, triton.next_power_of_2(value_size))
            _join[(sequences * query_heads * triton.cdiv(value_size, columns),)](
                partial, highest, totals, lengths, out, splits, query_heads, lengths.stride(0),
                VALUE_SIZE=value_size, COLUMNS=columns, SPLITS=triton.next_power_of_2(splits), num_warps=4,
            )  # fmt: skip
    return out


def configuration(group: int, key_size: int, value_size: int, dtype: torch.dtype, shared: int) -> dict[str, int | bool]:
    """Sizes of a tile: query heads, tokens, and slots of keys and values, as products want them.

    `shared` is the bytes of shared memory that a program may have: they bound the tiles that are on their way.
    """
    heads = min(64, max(16, triton.next_power_of_2(group)))
    slots = [max(16, triton.next_power_of_2(size)) for size in (key_size, value_size)]
    widest = max(slots)
    if dtype == torch.float32:  # without matrix units
        tokens, stages = max(16, min(32, 4096 // widest)), 1
    else:
        # The block table is read a turn ahead of keys and values: of five stages two hold tiles that are on their way
        # on NVIDIA, and three on AMD.
        tokens = max(16, min(64, 8192 // widest))
        stages = 5 if shared >= 3 * tokens * sum(slots) * 2 else 3
    options = {"HEADS": heads, "TOKENS": tokens, "STAGES": stages, "num_stages": stages, "num_warps": 4}
    return options | {"KEY_SLOTS": slots[0], "VALUE_SLOTS": slots[1]}


def splits_of(rows: int, tokens: int, processors: int) -> int:
    """Splits of each of `rows` (sequences and key heads) that have at most so many tokens."""
    wanted = triton.cdiv(processors * _TURNS, rows)
    return max(1, min(wanted, triton.cdiv(tokens, _LEAST), 512))


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a device; where it does not say, as many as a large one has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 128


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; where the device does not say, the least of any."""
    if device.type != "cuda" or torch.version.hip:
        return _LEAST_SHARED
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def _check(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    cached: torch.dtype,
) -> None:
    sequences, query_heads, key_size = query.shape
    said = f"query {tuple(query.shape)}, caches {tuple(key_cache.shape)} and {tuple(value_cache.shape)}"
    if key_cache.shape[:3] != value_cache.shape[:3] or key_cache.shape[3] != key_size:
        raise ValueError(f"paged_decode_attention: {said} do not belong together")
    if query_heads % key_cache.shape[2]:
        raise ValueError(f"paged_decode_attention: {said}: key heads do not divide query heads")
    if key_cache.dtype != cached or value_cache.dtype != cached:
        raise ValueError(f"paged_decode_attention: caches are {key_cache.dtype}, and must be {cached}")
    if block_table.shape[0] != sequences or lengths.shape != (sequences,):
        raise ValueError(f"paged_decode_attention: block table and lengths are not those of {sequences} sequences")


def has_native_fp8(device: torch.device) -> bool:
    """Whether Triton converts float8_e4m3fn there: on NVIDIA from 8.9 on. Elsewhere codes are read as bits."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


_TYPES = ("*bf16", "*fp16", "*fp32")
#: Query heads of a key head, key size, value size, window, soft cap: Llama 3, gpt-oss, Gemma 2, DeepSeek-V3.
_KINDS = [(8, 128, 128, False, False), (8, 64, 64, True, False), (2, 256, 256, True, True), (1, 192, 128, False, False)]
_STRIDES = (
    "query_sequence",
    "query_head",
    "key_block",
    "key_row",
    "key_head",
    "value_block",
    "value_row",
    "value_head",
)
_ONES = dict.fromkeys(("query_stride", "key_stride", "value_stride", "table_stride"), 1)


def _ahead_split(
    type: str, fp8: bool, native: bool, shared: int, kind: tuple[int, int, int, bool, bool]
) -> dict[str, object]:
    group, key_size, value_size, windowed, capped = kind
    cached = type if not fp8 else "*fp8e4nv" if native else "*u8"
    data = dict.fromkeys(("partial", "highest", "totals"), "*fp32") | {"table": "*i32", "lengths": "*i32"}
    data |= {"query": type, "out": type, "key_cache": cached, "value_cache": cached}
    data |= dict.fromkeys(("key_scale", "value_scale"), "*fp32" if fp8 else "*i32")
    whole = (*_FIXED, *_STRIDES)
    numbers = dict.fromkeys(whole, "i32") | {"scale": "fp32", "soft_cap": "fp32"}
    config = configuration(group, key_size, value_size, {"*fp32": torch.float32}.get(type, torch.bfloat16), shared)
    config |= _ONES
    config |= {
        "KEY_SIZE": key_size,
        "VALUE_SIZE": value_size,
        "BLOCK_SIZE": 16,
        "FP8": fp8,
        "NATIVE": native or not fp8,
    }
    config |= {"CAPPED": capped, "WINDOWED": windowed, "WHOLE": False}
    return {
        "name": f"split-{type[1:]}{'-fp8' if fp8 else ''}-{group}-{key_size}-{value_size}",
        "function": _split,
        "signature": {name: kind for name, kind in (data | numbers).items() if name not in config},
        "config": config,
        "divisible": (*data, *_STRIDES),
    }


def AHEAD(architecture: str) -> list[dict[str, object]]:
    """Pages of 16, plain and FP8, and the joining of few and of many splits."""
    native = architecture.startswith("sm_") and int(architecture[3:]) >= 89
    shared = _SHARED.get(architecture, _LEAST_SHARED)
    entries = [
        _ahead_split(type, fp8, native, shared, kind) for type in _TYPES for fp8 in (False, True) for kind in _KINDS
    ]
    for type in _TYPES:
        for splits in (16, 256):
            data = dict.fromkeys(("partial", "highest", "totals"), "*fp32") | {"lengths": "*i32", "out": type}
            entries.append(
                {
                    "name": f"join-{type[1:]}-{splits}",
                    "function": _join,
                    "signature": data | {"splits": "i32", "query_heads": "i32", "length_stride": "i32"},
                    "config": {"VALUE_SIZE": 128, "COLUMNS": 32, "SPLITS": splits, "num_warps": 4},
                    "divisible": tuple(data),
                }
            )
    return entries
