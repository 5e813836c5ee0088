"""How many pairs of a query and a key a causal pass scores: `new` tokens after `past`, the one at place p (from 0) of
the sequence seeing itself and what its kind of attention lets it see before it."""

from __future__ import annotations


def causal(new: int, past: int) -> int:
    """Each token sees all before it: Σ (p + 1)."""
    return _triangle(past + new) - _triangle(past)


def windowed(new: int, past: int, window: int) -> int:
    """Each token sees the last `window` tokens, itself among them: Σ min(p + 1, window)."""
    return grouped(new, past, 1, window)


def chunked(new: int, past: int, chunk: int) -> int:
    """Each token sees its own chunk up to itself: Σ (p mod chunk + 1)."""

    def upto(tokens: int) -> int:
        whole, rest = divmod(tokens, chunk)
        return whole * _triangle(chunk) + _triangle(rest)

    return upto(past + new) - upto(past)


def grouped(new: int, past: int, every: int, most: int | None = None) -> int:
    """Each token sees one entry for each whole group of `every` tokens, and at most `most`:
    Σ min((p + 1) // every, most)."""
    return _grouped_upto(past + new, every, most) - _grouped_upto(past, every, most)


def _grouped_upto(tokens: int, every: int, most: int | None) -> int:
    groups = tokens // every
    if most is not None and groups > most:
        full = most * every  # from this many tokens on, every token sees `most` entries
        return _grouped_upto(full - 1, every, None) + (tokens - full + 1) * most
    return every * _triangle(groups - 1) + groups * (tokens - groups * every + 1)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2
