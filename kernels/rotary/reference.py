"""The reference: plain torch, in float32 for anything narrower."""

from __future__ import annotations

import torch


def reference(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, cos_sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Query and key, (tokens, heads, head size), turned by their tokens' positions, (tokens,).

    `cos_sin` is (positions, rotary size): the cosines of all pairs, then their sines. Pair i is the numbers i and
    i + rotary size / 2 of a head (GPT-NeoX, Llama) or, interleaved, 2 i and 2 i + 1 (GPT-J, DeepSeek). The numbers from
    the rotary size on are passed through.
    """
    rotary = cos_sin.shape[-1]
    wide = torch.promote_types(query.dtype, torch.float32)
    cos, sin = cos_sin.to(wide)[positions].unsqueeze(1).chunk(2, dim=-1)

    def turned(heads: torch.Tensor) -> torch.Tensor:
        part, rest = heads[..., :rotary].to(wide), heads[..., rotary:]
        first, second = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, dim=-1)
        pairs = (first * cos - second * sin, second * cos + first * sin)
        joined = torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)
        return torch.cat((joined.to(heads.dtype), rest), dim=-1)

    return turned(query), turned(key)
