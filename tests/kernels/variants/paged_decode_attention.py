"""Paged decode attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, NARROW, WIDE, Compute, Outputs, Variants, rounded

Same = Callable[[torch.Tensor], torch.Tensor]
#: Of query (heads, group, size) and keys (heads, tokens, size), or of weights and values, transposed.
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: Outputs of scores (heads, group, tokens), values (heads, tokens, size) and the query's dtype.
Sum = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]


def _dots(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return left @ right.transpose(-2, -1)


def _running_dots(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    total = left.new_zeros(*left.shape[:-1], right.shape[-2])
    for a, b in zip(left.movedim(-1, 0).contiguous(), right.movedim(-1, 0).contiguous(), strict=True):
        total = total + a[..., None] * b[..., None, :]
    return total


def at_once(scores: torch.Tensor, values: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    return scores.softmax(dim=-1) @ values


def _running(scores: torch.Tensor, values: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """Token after token."""
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    total = arithmetic.running(weights)
    return _running_dots(weights, values.transpose(-2, -1)) / total[..., None]


def by_tiles(
    scores: torch.Tensor,
    values: torch.Tensor,
    dtype: torch.dtype,
    count: int,
    exp: Same = torch.exp,
    weights_of: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = lambda weights, _: weights,
    sum_of: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = lambda total, _: total,
    acc_of: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = lambda total, _: total,
    fades: bool = True,
) -> torch.Tensor:
    """In one pass over tiles, whose largest score is found on the way."""
    most = torch.full_like(scores[..., :1], -torch.inf)
    total = torch.zeros_like(most)
    out = scores.new_zeros(*scores.shape[:-1], values.shape[-1])
    for at in range(0, scores.shape[-1], count):
        tile = scores[..., at : at + count]
        highest = torch.maximum(most, tile.amax(dim=-1, keepdim=True))
        weights, faded = exp(tile - highest), exp(most - highest)
        if not fades:
            faded = torch.ones_like(faded)
        total = sum_of(total * faded + weights.sum(dim=-1, keepdim=True), dtype)
        out = acc_of(out * faded + weights_of(weights, dtype) @ values[..., at : at + count, :], dtype)
        most = highest
    return out / total


def by_splits(
    scores: torch.Tensor, values: torch.Tensor, dtype: torch.dtype, count: int, to: torch.dtype | None = None
) -> torch.Tensor:
    """Splits of `count` tokens, each with its own largest score, merged afterwards (flash decoding)."""
    parts, logs = [], []
    for at in range(0, scores.shape[-1], count):
        tile = scores[..., at : at + count]
        part = at_once(tile, values[..., at : at + count, :], dtype)
        parts.append(rounded(part, to) if to else part)
        logs.append(tile.logsumexp(dim=-1))
    shares = torch.stack(logs).softmax(dim=0)[..., None]
    return (torch.stack(parts) * shares).sum(dim=0)


def attended(
    dots: Product = _dots,
    sums: Sum = at_once,
    tanh: Same = torch.tanh,
    scores_of: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = lambda scores, _: scores,
    dequantised: bool = False,
    last: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = torch.Tensor.to,
    capped: bool = True,
    first_scale: bool = False,
    drops: int = 0,
    wider: int = 0,
    operands: Same = lambda value: value,
) -> Compute:
    """The operator with one way of each of its steps, sequence by sequence."""

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
    ) -> Outputs:
        block_size, heads = value_cache.shape[1:3]
        out = query.new_zeros(*query.shape[:2], value_cache.shape[-1])
        for sequence, length in enumerate(lengths.tolist()):
            begin = max(0, length - window - wider) if window else 0
            end = length - drops if length > drops + 1 else length
            if end <= begin:
                continue
            token = torch.arange(begin, end)
            where = block_table[sequence].long()[token // block_size] * block_size + token % block_size

            def taken(cache: torch.Tensor, by: torch.Tensor | None, where: torch.Tensor = where) -> torch.Tensor:
                rows = (
                    cache.view(torch.uint8).flatten(0, 1)[where].view(cache.dtype).float()
                    if by is not None
                    else (cache.flatten(0, 1)[where].float())
                )
                if by is not None:
                    rows = rows * (by[:1] if first_scale else by).reshape(-1, 1)
                    rows = rounded(rows, query.dtype) if dequantised else rows
                return operands(rows.transpose(0, 1))

            asked = operands(query[sequence].float().view(heads, -1, query.shape[-1]))
            scores = scores_of(dots(asked, taken(key_cache, key_scale)) * scale, query.dtype)
            if soft_cap is not None and capped:
                scores = soft_cap * tanh(scores / soft_cap)
            result = sums(scores, taken(value_cache, value_scale), query.dtype)
            out[sequence] = last(result.flatten(0, 1), query.dtype)
        return (out,)

    return run


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rounded(value, dtype)


_tiles = partial(partial, by_tiles)
VARIANTS = Variants(
    honest={
        "at once": (attended(), ALL),
        "running sums": (attended(_running_dots, _running), ALL),
        "tiles of 16": (attended(sums=_tiles(count=16)), ALL),
        "tiles of 64": (attended(sums=_tiles(count=64)), ALL),
        "tiles of 128, approximate exponential": (attended(sums=_tiles(count=128, exp=arithmetic.exp_approx)), ALL),
        "splits of 256 tokens": (attended(sums=partial(by_splits, count=256)), ALL),
        "weights rounded, as flash attention has them": (attended(sums=_tiles(count=64, weights_of=_rounded)), NARROW),
        "dequantised to the query's dtype": (attended(dequantised=True), NARROW),
        "splits kept in the query's dtype": (
            attended(sums=lambda scores, values, dtype: by_splits(scores, values, dtype, 256, dtype)),
            NARROW,
        ),
        "weights rounded and dequantised, as vLLM does": (
            attended(sums=_tiles(count=64, weights_of=_rounded), dequantised=True),
            NARROW,
        ),
        "approximate tanh": (attended(tanh=arithmetic.tanh_approx), ("bfloat16",)),
    },
    wrong={
        "operands in TF32": (attended(operands=lambda value: arithmetic.coarse(value, 10)), WIDE),
        "operands in bfloat16": (
            attended(operands=lambda value: rounded(value, torch.bfloat16)),
            ("float32", "float16"),
        ),
        "approximate tanh": (attended(tanh=arithmetic.tanh_approx), ("float32", "float16")),
        "scores in the query's dtype": (attended(scores_of=_rounded), NARROW),
        "scores and weights in the query's dtype": (
            attended(scores_of=_rounded, sums=_tiles(count=64, weights_of=_rounded)),
            NARROW,
        ),
        "outputs summed in the query's dtype": (attended(sums=_tiles(count=64, acc_of=_rounded)), NARROW),
        "weights summed in the query's dtype": (attended(sums=_tiles(count=16, sum_of=_rounded)), NARROW),
        "cut toward zero": (attended(last=arithmetic.cut), NARROW),
        "no soft cap": (attended(capped=False), ALL),
        "the first head's scale for all": (attended(first_scale=True), ALL),
        "sums that are not rescaled": (attended(sums=_tiles(count=64, fades=False)), ALL),
        "the last token left": (attended(drops=1), ALL),
        "a window of one more": (attended(wider=1), ALL),
    },
)
