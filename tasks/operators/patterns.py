"""Patterns of operators, and how they are found in an FX graph.

A pattern is an expression over the names of operators without overload and without the underscore of in-place forms:

    mul($x, rsqrt(add(mean(pow($x)))))

`a|b` is either of two, `_` anything, `$x` the same node wherever it stands, `$x=...` names what follows, and `~a(...)`
is `a` some steps up, with no matrix product between. Operands of `add` and `mul` match in any order, those of others in
theirs; operands that the expression does not name are not looked at. Conversions and changes of shape (`through` in the
file) are seen through. Where `$key` is bound, matches with the same one count once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.home import configs

if TYPE_CHECKING:  # the report reads patterns without torch
    from torch.fx import Graph, Node

COMMUTATIVE = {"add", "mul"}

#: Products, which `~` does not cross.
PRODUCTS = {
    "linear",
    "mm",
    "bmm",
    "matmul",
    "addmm",
    "baddbmm",
    "einsum",
    "_grouped_mm",
    "scaled_dot_product_attention",
}

#: Steps that `~` goes up.
DEEP = 12

_TOKEN = re.compile(r"\s*(?:(\$\w+)|([\w|]+)|([~=(),]))")

Bound = dict[str, Any]


@dataclass(frozen=True)
class Expression:
    """A parsed pattern; `names` empty: anything."""

    names: frozenset[str] = frozenset()
    operands: tuple[Expression, ...] = ()
    bind: str | None = None
    deep: bool = False


class Pattern(Frozen):
    """A pattern that engines and backends fuse."""

    what: str = Field(min_length=1)
    match: tuple[str, ...] = Field(min_length=1)
    """Any of these expressions."""
    fused: dict[str, str] = Field(default_factory=dict)
    """Engine or operator list → how it has the pattern fused, with the source."""

    @field_validator("match")
    @classmethod
    def _parse(cls, expressions: tuple[str, ...]) -> tuple[str, ...]:
        for expression in expressions:
            parse(expression)
        return expressions


class Patterns(Frozen):
    """configs/patterns.yaml"""

    through: tuple[str, ...]
    patterns: dict[str, Pattern]


@functools.cache
def _file() -> Patterns:
    return load_config(configs() / "patterns.yaml", Patterns)


def load_patterns() -> dict[str, Pattern]:
    """The patterns by name.

    Raises:
        InputError: the file is malformed.
    """
    return _file().patterns


def parse(text: str) -> Expression:
    """Raises ValueError where the expression is malformed."""
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if not found:
            raise ValueError(f"{text!r} is no pattern: {text[at : at + 10]!r} cannot be read")
        tokens.append(found[0].strip())
        at = found.end()
    expression, rest = _expression(tokens, text)
    if rest:
        raise ValueError(f"{text!r} is no pattern: {rest[0]!r} is too much")
    return expression


def _expression(tokens: list[str], text: str) -> tuple[Expression, list[str]]:
    deep = tokens[:1] == ["~"]
    tokens = tokens[1:] if deep else tokens
    bind = None
    if tokens and tokens[0].startswith("$"):
        bind, tokens = tokens[0], tokens[1:]
        if tokens[:1] != ["="]:
            return Expression(bind=bind, deep=deep), tokens
        tokens = tokens[1:]
    if not tokens or not re.fullmatch(r"[\w|]+", tokens[0]):
        raise ValueError(f"{text!r} is no pattern: an operator's name is missing")
    names = frozenset() if tokens[0] == "_" else frozenset(tokens[0].split("|"))
    tokens, operands = tokens[1:], []
    if tokens[:1] == ["("]:
        while tokens[0] != ")":
            operand, tokens = _expression(tokens[1:], text)
            operands.append(operand)
            if not tokens or tokens[0] not in (",", ")"):
                raise ValueError(f"{text!r} is no pattern: a parenthesis is not closed")
        tokens = tokens[1:]
    return Expression(names, tuple(operands), bind, deep), tokens


class Matcher:
    """Finds patterns in one graph."""

    def __init__(self, graph: Graph) -> None:
        self.through = frozenset(_file().through)
        self.nodes = [node for node in graph.nodes if node.op == "call_function"]
        self.names = {node: _name(node) for node in self.nodes}

    def count(self, pattern: Pattern) -> int:
        """How often the pattern is in the graph: by its last node, or by `$key`."""
        found: set[Any] = set()
        for text in pattern.match:
            expression = parse(text)
            for node in self.nodes:
                if self.names[node] in expression.names:
                    bound = next(self._matches(node, expression, {}), None)
                    if bound is not None:
                        found.add(bound.get("$key", node))
        return len(found)

    def _matches(self, node: Node, wanted: Expression, bound: Bound) -> Iterator[Bound]:
        """All ways in which the node, or one that it only reshapes, is what is wanted."""
        for candidate in self._candidates(node, wanted):
            if wanted.names and self.names.get(candidate) not in wanted.names:
                continue
            now = bound
            if wanted.bind:
                base = self._base(candidate)
                if bound.get(wanted.bind, base) is not base:
                    continue
                now = {**bound, wanted.bind: base}
            yield from self._operands(candidate, wanted, now)

    def _candidates(self, node: Node, wanted: Expression) -> Iterator[Node]:
        yield node
        if wanted.deep:
            seen, level = {node}, [node]
            for _ in range(DEEP):
                level = [
                    up
                    for below in level
                    if self.names.get(below) not in PRODUCTS
                    for up in below.all_input_nodes
                    if up not in seen and not seen.add(up)  # type: ignore[func-returns-value]
                ]
                yield from level
            return
        while self.names.get(node) in self.through and node.all_input_nodes:
            node = node.all_input_nodes[0]
            yield node

    def _base(self, node: Node) -> Node:
        while self.names.get(node) in self.through and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node

    def _operands(self, node: Node, wanted: Expression, bound: Bound) -> Iterator[Bound]:
        if not wanted.operands:
            yield bound
            return
        inputs = node.all_input_nodes
        # The same node as both operands is listed once.
        inputs = inputs * 2 if len(inputs) == 1 and len(wanted.operands) == 2 else inputs
        orders = [list(inputs)]
        if self.names.get(node) in COMMUTATIVE:
            orders.append(list(inputs)[::-1])
        for order in orders:
            if len(order) < len(wanted.operands):
                continue
            yield from self._each(order, wanted.operands, bound)

    def _each(self, inputs: list[Node], wanted: tuple[Expression, ...], bound: Bound) -> Iterator[Bound]:
        if not wanted:
            yield bound
            return
        for now in self._matches(inputs[0], wanted[0], bound):
            yield from self._each(inputs[1:], wanted[1:], now)


def _name(node: Node) -> str:
    """An operator without overload; conversions from and to 8-bit floats are `dequantise` and `quantise`."""
    schema = getattr(node.target, "_schema", None)
    name = str(schema.name) if schema is not None else getattr(node.target, "__name__", str(node.target))
    name = name.removeprefix("aten::").rstrip("_")
    if name in ("to", "_to_copy", "view"):
        after = _dtype(node)
        before = _dtype(node.all_input_nodes[0]) if node.all_input_nodes else ""
        if before != after and "float8" in after:
            return "quantise"
        if before != after and "float8" in before:
            return "dequantise"
    return name


def _dtype(node: Node) -> str:
    value = node.meta.get("val")
    return str(getattr(value, "dtype", ""))
