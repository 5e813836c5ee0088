"""Sizes as a family writes them down: sums of products of names, such as `heads*head_dim` or `2*key_dim+value_dim`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from day0.errors import InputError

_TOKEN = re.compile(r"\s*([+\-]?)\s*([^+\-]+)")
_FACTOR = re.compile(r"(^|[*/])([^*/]+)")


def evaluate(expression: str, sizes: Mapping[str, int], what: str) -> int:
    """The value of a sum of terms; each term a product, or an exact quotient such as `hidden/heads`, left to right.

    Raises:
        InputError: a quotient is not whole; names `what` is computed and the numbers.
    """
    total = 0
    for sign, term in _TOKEN.findall(expression):
        value = _term(term.strip(), sizes, what, expression)
        total += -value if sign == "-" else value
    return total


def words(expression: str) -> Iterator[str]:
    """The names in an expression."""
    for word in re.split(r"[*/+\-\s]+", expression):
        if word and not word.isdigit():
            yield word


def _term(term: str, sizes: Mapping[str, int], what: str, whole: str) -> int:
    result = 1
    for operator, word in _FACTOR.findall(term):
        value = int(word) if word.isdigit() else sizes[word]
        if operator != "/":
            result *= value
        elif value == 0 or result % value:
            raise InputError(f"config.json: {what} = {whole} is not whole: {result} is not divisible by {value}")
        else:
            result //= value
    return result
