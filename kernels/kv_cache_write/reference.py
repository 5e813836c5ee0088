"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

from typing import Any

import torch

#: The largest float8_e4m3fn.
LARGEST = 448.0


def reference(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The caches, (blocks, block size, heads, head size), after key and value, (tokens, heads, head size), are written.

    Token t goes to slot slots[t], int64: row slot % block size of block slot // block size; a negative slot is padding
    and is not written. No two tokens may have one slot. With a scale, float32 of one number or of one for each head,
    the cache is float8_e4m3fn and holds key / scale, within ±448; without, it has the keys' dtype.
    """
    return _written(key, key_cache, slots, key_scale), _written(value, value_cache, slots, value_scale)


def comparable(args: tuple[Any, ...], outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """FP8: how far codes are from the quotients, and from what the cache held where nothing is written, which is the
    same on both sides of a tie. Copies: their bits, every NaN the same.
    """
    key, value, key_cache, value_cache, slots, key_scale, value_scale = args
    found = []
    for new, cache, scale, output in (
        (key, key_cache, key_scale, outputs[0]),
        (value, value_cache, value_scale, outputs[1]),
    ):
        if scale is None:
            whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[output.dtype.itemsize]
            found.append(output.masked_fill(output.isnan(), torch.nan).contiguous().view(whole))
        else:
            found.append((output.double() - _written(new, cache.double(), slots, scale)).abs())
    return tuple(found)


def _written(new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    rows = new
    if scale is not None:
        wide = torch.promote_types(new.dtype, torch.float32)
        rows = (new.to(wide) / scale.to(wide).reshape(-1, 1)).clamp(-LARGEST, LARGEST)
    # Padding goes to one more slot, which is cut off: shapes do not depend on what the slots are.
    flat = torch.cat((cache.flatten(0, 1), cache.new_empty(1, *cache.shape[2:])))
    where = torch.where(slots < 0, flat.shape[0] - 1, slots)
    # By bytes where the cache is FP8, because torch scatters no FP8.
    narrow = rows.to(cache.dtype)
    if cache.dtype == torch.float8_e4m3fn:
        written = flat.view(torch.uint8).index_copy(0, where, narrow.view(torch.uint8)).view(cache.dtype)
    else:
        written = flat.index_copy(0, where, narrow)
    return written[:-1].unflatten(0, cache.shape[:2])


def baseline(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: torch.Tensor | None,
    value_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Written in place by torch's own scatter; slots must be free of padding."""
    for new, cache, scale in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        if scale is None:
            cache.flatten(0, 1).index_copy_(0, slots, new)
        else:
            codes = (new.float() / scale.reshape(-1, 1)).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
            cache.view(torch.uint8).flatten(0, 1).index_copy_(0, slots, codes.view(torch.uint8))
    return key_cache, value_cache
