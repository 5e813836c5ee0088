"""Finds loops in generated text, and lets tables, code and poems be.

A loop is a repetition that does not end. Legitimate repetition (a table's rule, a matrix of zeros, a refrain) is
exact too, but the answer goes on to something else, or stops by itself. So an answer that was cut off by its length
while it repeated itself is a loop after a few rounds, and one that recovered only after very many.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from tasks.smoke.settings import RepetitionLimits

_PIECES = re.compile(r"[぀-ヿ㐀-鿿가-힯]|\w+|[^\w\s]|\n")
NGRAM = 3


@dataclass(frozen=True)
class Repetition:
    """The longest exact repetition, and how varied the end is."""

    period: int
    """Tokens in one round; 0 if nothing repeats."""
    repeats: float
    """Rounds, the first included."""
    start: int
    """Where the first round begins."""
    tokens: int
    """Tokens that all rounds cover."""
    at_end: bool
    distinct: float
    """Share of distinct n-grams in the last window; 1 if the answer is shorter than the window."""
    loop: bool
    reason: str


def pieces(text: str) -> list[str]:
    """Words, marks, line ends and single CJK characters: what to count where token ids are not known."""
    return _PIECES.findall(text)


def measure(tokens: Sequence[Hashable], finish_reason: str, limits: RepetitionLimits) -> Repetition:
    """Measure an answer's repetition. Cost: tokens × longest period considered (a third of the answer, at most 512)."""
    count = len(tokens)
    best, closing = (0, 0, 0), (0, 0, 0)  # (tokens covered, period, start)
    for period in range(1, min(count // 2, 512) + 1):
        matched = 0
        for at in range(period, count + 1):
            if at < count and tokens[at] == tokens[at - period]:
                matched += 1
                continue
            # a run of `matched` equal tokens ends here: rounds cover matched + period tokens
            if matched >= period:
                found = (matched + period, period, at - matched - period)
                if _better(found, best):
                    best = found
                if at == count and _better(found, closing):
                    closing = found
            matched = 0
    tail = tokens[-limits.window :]
    distinct = 1.0
    if count >= limits.window:
        grams = [tuple(tail[i : i + NGRAM]) for i in range(len(tail) - NGRAM + 1)]
        distinct = len(set(grams)) / len(grams)
    cut = finish_reason == "length"
    reason = ""
    shown = best
    if cut and _is_loop(closing, limits.repeats, limits.tokens):
        shown = closing
        reason = (
            f"{closing[1]} tokens repeat {closing[0] / closing[1]:.1f} times up to the end, from token {closing[2]} on"
        )
    elif _is_loop(best, limits.repeats, limits.ended_tokens):
        reason = f"{best[1]} tokens repeat {best[0] / best[1]:.1f} times, from token {best[2]} on"
    elif cut and distinct < limits.distinct:
        reason = f"only {distinct:.0%} of the {NGRAM}-grams in the last {limits.window} tokens are distinct"
    covered, period, start = shown
    return Repetition(
        period=period,
        repeats=covered / period if period else 0.0,
        start=start,
        tokens=covered,
        at_end=bool(period) and start + covered == count,
        distinct=distinct,
        loop=bool(reason),
        reason=reason,
    )


def _better(found: tuple[int, int, int], best: tuple[int, int, int]) -> bool:
    """Longer coverage wins; of equal coverage the shorter period, which was found first."""
    return found[0] > best[0]


def _is_loop(run: tuple[int, int, int], repeats: int, tokens: int) -> bool:
    covered, period, _ = run
    return period > 0 and covered >= tokens and covered / period >= repeats
