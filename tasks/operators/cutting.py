"""Calls made smaller: float64 on the CPU must be quick, and a model's weights are not."""

from __future__ import annotations

import math

from tasks.operators.calls import Call, specs
from tasks.operators.records import ATTENTION, TensorSpec

#: Elements of the largest operand that is made. Weights beyond it are cut where that is known to keep the call right.
MOST_ELEMENTS = 1 << 22

#: Elements of memory that one operand may span, gaps and all, or that a result may have.
MOST_SPANNED = 1 << 24

#: Rows of a product and heads of attention from which they are cut: each is computed as the others are.
MOST_ROWS = 256
MOST_HEADS = 4

#: Operators that only look at their operand, whose size is of no matter; and its elements from which it is cut.
VIEWS = ("aten::t", "aten::detach", "aten::alias", "aten::transpose", "aten::permute")
MOST_VIEWED = 1 << 16


class TooLarge(Exception):
    """An operand has more elements than are made, and cannot be cut."""


def cut(call: Call) -> Call:
    """The call with weights of at most MOST_ELEMENTS.

    What a product sums over keeps its length, as errors grow with it; its columns, experts and a table's rows do not.

    Raises:
        TooLarge: it is not known how to cut this operator's operands.
    """
    largest = max((math.prod(s.shape) for s in specs(call)), default=0)
    call = with_fewer_rows(call)
    args = list(call.args)
    if call.packet in VIEWS and largest > MOST_VIEWED:
        args[0] = _resized(args[0], tuple(min(n, 64) for n in args[0].shape))
        return Call(call.operator, tuple(args), call.kwargs)
    if largest <= MOST_ELEMENTS:
        return _believed(call)
    if call.packet == "aten::mm":
        args[1] = _resized(args[1], (args[1].shape[0], min(args[1].shape[1], _columns(args[1].shape[0]))))
    elif call.packet == "aten::addmm":
        columns = min(args[2].shape[1], _columns(args[2].shape[0]))
        args[0] = _resized(args[0], (*args[0].shape[:-1], columns))
        args[2] = _resized(args[2], (args[2].shape[0], columns))
    elif call.packet == "aten::bmm":
        batch, k, columns = args[1].shape
        batch = min(batch, 4)
        args[0] = _resized(args[0], (batch, *args[0].shape[1:]))
        args[1] = _resized(args[1], (batch, k, min(columns, _whole(_columns(k) // batch))))
    elif call.packet == "aten::_grouped_mm" and len(args) > 2 and len(args[1].shape) == 3:
        experts, k, columns = args[1].shape
        experts = min(experts, 4)
        args[1] = _resized(args[1], (experts, k, min(columns, _whole(_columns(k) // experts))))
        args[2] = _resized(args[2], (experts,))
    elif call.packet in ("aten::embedding", "aten::index_select", "aten::index"):
        row = max(1, math.prod(args[0].shape[1:]))
        args[0] = _resized(args[0], (max(1, min(args[0].shape[0], MOST_ELEMENTS // row)), *args[0].shape[1:]))
    smaller = Call(call.operator, tuple(args), call.kwargs)
    if any(math.prod(s.shape) > MOST_ELEMENTS for s in specs(smaller)):
        raise TooLarge(f"an operand of more than {MOST_ELEMENTS:,} elements")
    return _believed(smaller)


def _believed(call: Call) -> Call:
    if any(spanned(s) > MOST_SPANNED for s in specs(call)):
        raise TooLarge(f"an operand that spans more than {MOST_SPANNED:,} elements of memory")
    return call


def with_fewer_rows(call: Call) -> Call:
    """A product of many rows with some of them, attention of many positions with some of its heads: in float64 on the
    CPU each takes seconds."""
    args = list(call.args)
    if call.packet in ("aten::mm", "aten::addmm"):
        first = 0 if call.packet == "aten::mm" else 1
        rows, columns = args[first].shape
        if rows > MOST_ROWS:
            args[first] = _resized(args[first], (MOST_ROWS, columns))
            if first and len(args[0].shape) == 2 and args[0].shape[0] == rows:
                args[0] = _resized(args[0], (MOST_ROWS, args[0].shape[1]))
    elif call.packet == ATTENTION and len(args[0].shape) == 4 and args[0].shape[2] > MOST_ROWS:
        shapes = [spec.shape for spec in args[:3]]
        if len({shape[1] for shape in shapes}) == 1 and shapes[0][1] > MOST_HEADS and not _masked_by_head(call):
            args[:3] = [_resized(spec, (spec.shape[0], MOST_HEADS, *spec.shape[2:])) for spec in args[:3]]
    return Call(call.operator, tuple(args), call.kwargs) if args != list(call.args) else call


def _masked_by_head(call: Call) -> bool:
    mask = call.args[3] if len(call.args) > 3 else call.kwargs.get("attn_mask")
    return isinstance(mask, TensorSpec) and len(mask.shape) == 4 and mask.shape[1] != 1


def spanned(spec: TensorSpec) -> int:
    """Elements of memory from a tensor's first element to its last."""
    if not all(spec.shape):
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(spec.shape, spec.stride, strict=True))


def _columns(rows: int) -> int:
    """How many are kept; whole multiples, as kernels want rows to begin at multiples of 16 bytes."""
    return _whole(MOST_ELEMENTS // max(1, rows))


def _whole(columns: int) -> int:
    return columns // 64 * 64 or max(1, columns)


def _resized(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """Another shape with its dimensions in memory in the same order."""
    strides, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (spec.stride[d], -d)):
        if spec.stride[d]:
            strides[d], step = step, step * max(1, shape[d])
    return TensorSpec(spec.dtype, shape, tuple(strides))
