"""Formulas of sizes in kernel.yaml: Python expressions of numbers and names, and nothing else."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "ceil": math.ceil, "log2": math.log2}


def evaluate(text: str, names: Mapping[str, Any]) -> float:
    """The value of `text`, which must be finite and not negative.

    Raises:
        ValueError: a name that is not given, anything but arithmetic, or no such value.
    """
    try:
        value = _value(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"{text!r} is no expression") from error
    except (ZeroDivisionError, TypeError, OverflowError) as error:
        raise ValueError(f"{text!r} has no value: {error}") from error
    if isinstance(value, str) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{text!r} is {value}, which is no amount")
    return float(value)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return node.value
        case ast.Name(id=name):
            if name not in names:
                raise ValueError(f"there is no {name!r}; there are {', '.join(names)}")
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return _COMPARED[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(argument, names) for argument in args))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")
