"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

import torch


def reference(
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
) -> tuple[torch.Tensor]:
    """The outputs, (sequences, query heads, value size), for query (sequences, query heads, key size), of its dtype.

    Token t of sequence s lies in row t % block size of block block_table[s, t // block size] of the caches, (blocks,
    block size, heads, key or value size). Block table and lengths are int32. Query head h reads head
    h // (query heads / heads). The last of `lengths` tokens is the query's own; with a window only the last `window`
    count. A score is query · key * scale, and with a soft cap c, c tanh(score / c). FP8 caches (float8_e4m3fn) are
    multiplied by their scales, float32 of one number or of one for each head. A sequence of length 0 gives zeros.
    """
    sequences, query_heads, _ = query.shape
    _, block_size, heads, _ = value_cache.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    tokens = block_table.shape[1] * block_size
    blocks = block_table.long()

    def gathered(cache: torch.Tensor, by: torch.Tensor | None) -> torch.Tensor:
        rows = cache[blocks].to(wide).reshape(sequences, tokens, heads, cache.shape[-1])
        return rows if by is None else rows * by.to(wide).reshape(-1, 1)

    at = torch.arange(tokens, device=query.device)
    seen = at < lengths[:, None]
    if window is not None:
        seen = seen & (at >= lengths[:, None] - window)
    asked = query.to(wide).unflatten(1, (heads, query_heads // heads))
    scores = torch.einsum("shgd,sthd->shgt", asked, gathered(key_cache, key_scale)) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(dim=-1)
    # What lies in unseen slots counts for nothing, were it a NaN.
    values = gathered(value_cache, value_scale).masked_fill(~seen[:, :, None, None], 0)
    out = torch.einsum("shgt,sthd->shgd", weights, values).flatten(1, 2)
    return (out.masked_fill((lengths == 0)[:, None, None], 0).to(query.dtype),)


def baseline(
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
) -> tuple[torch.Tensor]:
    """torch's scaled_dot_product_attention over what the block tables name, gathered; the reference with a soft cap."""
    if soft_cap is not None:
        options = (scale, soft_cap, window, key_scale, value_scale)
        return reference(query, key_cache, value_cache, block_table, lengths, *options)

    def gathered(cache: torch.Tensor, by: torch.Tensor | None) -> torch.Tensor:
        rows = cache[block_table.long()].flatten(1, 2)
        if by is not None:
            rows = (rows.float() * by.reshape(-1, 1)).to(query.dtype)
        return rows.transpose(1, 2)

    keys, values = gathered(key_cache, key_scale), gathered(value_cache, value_scale)
    at = torch.arange(keys.shape[2], device=query.device)
    seen = at < lengths[:, None]
    if window is not None:
        seen = seen & (at >= lengths[:, None] - window)
    mask = seen[:, None, None]
    out = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None], keys, values, attn_mask=mask, scale=scale, enable_gqa=True
    )
    return (out[:, :, 0],)
