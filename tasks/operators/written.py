"""Calls of operators as JSON between processes: what captured them need not be what runs them again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from tasks.operators.calls import Call
from tasks.operators.costs import work_class
from tasks.operators.recorder import is_view
from tasks.operators.records import TensorSpec, WrittenCall

_NAME = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?")
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


class Unreadable(Exception):
    """A call that is not run: it cannot be written or read, or is not believed. The message says why, as a clause."""


def write_call(call: Call) -> WrittenCall:
    """A call as JSON.

    Raises:
        Unreadable: an argument is of a type that there is no writing for.
    """
    return WrittenCall(
        overload=call.name,
        args=tuple(_written(x) for x in call.args),
        kwargs={key: _written(x) for key, x in call.kwargs.items()},
    )


def write_calls(calls: Mapping[str, Iterable[Call]]) -> tuple[tuple[WrittenCall, ...], dict[str, str]]:
    """All that can be written, and by overload why none of its calls can."""
    found: list[WrittenCall] = []
    reasons: dict[str, str] = {}
    for name, its in calls.items():
        written = []
        for call in its:
            try:
                written.append(write_call(call))
            except Unreadable as error:
                reasons[name] = str(error)
        found += written
        if written:
            reasons.pop(name, None)
    return tuple(found), reasons


def read_call(written: WrittenCall, *, foreign: bool = False) -> Call:
    """The call in this process's torch.

    Args:
        foreign: what wrote it ran a release's own code and may have written anything. Only views, and operators whose
            work is known (costs.yaml), are run then: torch has others that write files, or trust what they are given.

    Raises:
        Unreadable: this torch has no such operator, the arguments are malformed, or the operator is not run for foreign
            code.
    """
    name = written.overload
    parts = _NAME.fullmatch(name)
    found = getattr(torch.ops, parts[1], None) if parts else None
    found = getattr(found, parts[2], None) if parts else None
    found = getattr(found, parts[3] or "default", None) if parts else None
    if not isinstance(found, OpOverload):
        raise Unreadable("the torch installed here has no such operator")
    known = name.startswith("aten::") and (work_class(name) != "other" or is_view(found._schema))
    if foreign and not known:
        raise Unreadable("the release's own code names it, and it is none of those that are run for such code")
    return Call(found, tuple(_read(x) for x in written.args), {key: _read(x) for key, x in written.kwargs.items()})


def _written(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return {"tensor": value.dtype, "shape": value.shape, "stride": value.stride}
    if isinstance(value, torch.device):
        return {"device": None}  # the one that it is run on
    if isinstance(value, _OF_TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [_written(x) for x in value]
    raise Unreadable(f"an argument of type {type(value).__name__} cannot be told to another process")


def _read(value: Any) -> Any:
    match value:
        case {"tensor": str(dtype), "shape": [*shape], "stride": [*stride]} if len(shape) == len(stride):
            if not isinstance(getattr(torch, dtype, None), torch.dtype) or not _sizes((*shape, *stride)):
                raise Unreadable("a tensor's dtype, shape or strides are malformed")
            return TensorSpec(dtype, tuple(shape), tuple(stride))
        case {"device": None}:
            return torch.device("cpu")
        case {"torch": str(name)} if isinstance(getattr(torch, name, None), _OF_TORCH):
            return getattr(torch, name)
        case {"float": "inf" | "-inf" | "nan" as number}:
            return float(number)
        case bool() | int() | float() | str() | None:
            return value
        case [*items]:
            return [_read(x) for x in items]
    raise Unreadable("an argument is malformed")


def _sizes(values: Iterable[Any]) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in values)
