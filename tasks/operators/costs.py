"""FLOPs and bytes of one operator call, from the shapes of its operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from day0.config import read_yaml
from tasks.operators.records import ATTENTION


class Operand(NamedTuple):
    """A tensor as a cost formula sees it. `stored` counts its distinct elements: an expanded dimension is one."""

    shape: tuple[int, ...]
    itemsize: int
    floating: bool
    stored: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.stored * self.itemsize


class Cost(NamedTuple):
    """FLOPs and bytes moved; None where no formula is known, never 0."""

    flops: float | None
    bytes: float | None


UNKNOWN = Cost(None, None)


def cost(
    name: str,
    inputs: Sequence[Operand],
    outputs: Sequence[Operand],
    *,
    is_view: bool = False,
    causal: bool = False,
) -> Cost:
    """What one call of the overload `name` costs.

    Args:
        inputs: the tensors among its arguments, in order.
        is_view: its result aliases an operand.
        causal: for attention, `is_causal`.
    """
    packet = name.partition(".")[0].rstrip("_")
    table = _table()
    if is_view or packet in table["view"]:
        return Cost(0, 0)
    if packet in table["host"] or packet in table["assert"]:
        return Cost(0, sum(i.bytes for i in inputs))
    if not outputs:
        return UNKNOWN
    written = sum(o.bytes for o in outputs)
    moved: float = sum(i.bytes for i in inputs) + written
    if packet == "aten::_grouped_mm" and len(inputs[1].shape) == 3:
        # Of the experts, at most as many are read as there are rows: in decode few of them.
        experts = inputs[1].shape[0]
        moved -= inputs[1].bytes * (1 - min(experts, inputs[0].shape[0]) / experts) if experts else 0
    if formula := PRODUCTS.get(packet):
        return Cost(formula(inputs, causal, outputs[0]), moved)
    if packet in table["elementwise"]:
        return Cost(table["elementwise"][packet] * outputs[0].numel * outputs[0].floating, moved)
    if packet in table["reduction"]:
        return Cost(table["reduction"][packet] * inputs[0].numel * inputs[0].floating, moved)
    if packet in table["copy"]:
        # The first operand of an in-place copy is only written.
        return Cost(0, moved - inputs[0].bytes if name.startswith("aten::copy_") else moved)
    if packet in table["create"]:
        return Cost(0, written)
    if packet in table["gather"]:
        return Cost(0, sum(i.bytes for i in inputs[1:]) + 2 * written)
    if packet == "aten::_embedding_bag_forward_only":
        # A row for each index is read, and added to its bag's.
        rows = inputs[1].numel * inputs[0].shape[-1]
        return Cost(rows, sum(i.bytes for i in inputs[1:]) + rows * inputs[0].itemsize + written)
    if packet in table["scatter"]:
        # What is written is as much as the values, or as the indices where one value goes everywhere.
        given = sum(i.bytes for i in inputs[1:])
        placed = inputs[-1].stored * inputs[0].itemsize
        in_place = name.partition(".")[0].endswith("_")
        return Cost(0, given + placed + (0 if in_place else inputs[0].bytes + written))
    return UNKNOWN


def is_product(name: str) -> bool:
    """Whether an overload is a matrix product, or attention."""
    return name.partition(".")[0] in PRODUCTS


def matrix_product(a: Operand, b: Operand) -> int:
    """[…, m, k] @ [k, n] or [b, m, k] @ [b, k, n]: 2·b·m·k·n, a multiplication and an addition each."""
    return 2 * a.numel * b.shape[-1]


def work_class(name: str) -> str:
    """The kind of kernel that an operator needs, by the tables here: what it takes to write one."""
    packet = name.partition(".")[0].rstrip("_")
    if packet in PRODUCTS:
        return "attention" if packet == ATTENTION else "product"
    table = _table()
    if packet in table["host"]:
        return "host"
    kinds = (
        kind
        for kind in ("view", "create", "copy", "elementwise", "reduction", "gather", "scatter")
        if packet in table[kind]
    )
    return next(kinds, "other")


def attention(query: Operand, key: Operand, value: Operand, causal: bool) -> int:
    """Q·Kᵀ and the weights times V: 2·B·H·pairs·(d_qk + d_v); softmax is left out.

    Shapes are [B, H, S, d]; key-value heads may be fewer than H. `pairs` are S·T, or where it is causal those with
    key position <= query position, counted from the upper left corner as torch does.
    """
    batch_heads = math.prod(query.shape[:-2])
    s, t = query.shape[-2], key.shape[-2]
    square = min(s, t)
    pairs = square * (square + 1) // 2 + max(0, s - t) * t if causal else s * t
    return 2 * batch_heads * pairs * (query.shape[-1] + value.shape[-1])


Formula = Callable[[Sequence[Operand], bool, Operand], int]
"""Operands, whether it is causal, and the result."""

PRODUCTS: dict[str, Formula] = {
    "aten::mm": lambda x, _, __: matrix_product(x[0], x[1]),
    "aten::bmm": lambda x, _, __: matrix_product(x[0], x[1]),
    "aten::addmm": lambda x, _, __: matrix_product(x[1], x[2]) + x[1].shape[0] * x[2].shape[-1],
    "aten::baddbmm": lambda x, _, __: matrix_product(x[1], x[2]) + math.prod(x[1].shape[:-1]) * x[2].shape[-1],
    # Every row of [m, k] goes through one expert's [k, n].
    "aten::_grouped_mm": lambda x, _, __: matrix_product(x[0], x[1]),
    # A weight of [out, in / groups, kernel...] for each element of the result.
    "aten::convolution": lambda x, _, out: 2 * out.numel * math.prod(x[1].shape[1:]),
    # Substitution: half of a square of multiplications and additions for each column.
    "aten::linalg_solve_triangular": lambda x, _, out: out.numel * x[0].shape[-1],
    "aten::scaled_dot_product_attention": lambda x, causal, _: attention(x[0], x[1], x[2], causal),
}


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(Path(__file__).with_name("costs.yaml"))
    return table
