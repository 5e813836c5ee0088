"""A model's calls of operators, and inputs to make them again with on any device.

Calls are recorded on the meta device, so values are made up: random, and within bounds where they index something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tasks.operators.records import TensorSpec

#: Calls of one overload that are kept: the first of each set of shapes and strides.
MOST_CALLS = 6

#: Defined for positive values only.
POSITIVE = ("aten::log", "aten::rsqrt", "aten::sqrt")

#: Not defined for integers whose second operand is 0.
DIVIDE = ("aten::div", "aten::floor_divide", "aten::remainder", "aten::fmod")


@dataclass(frozen=True)
class Call:
    """One call: the overload's object of torch, and its arguments with a TensorSpec in the place of each tensor."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.operator.name())

    @property
    def packet(self) -> str:
        return self.name.partition(".")[0].rstrip("_")

    def map(self, change: Callable[[Any], Any]) -> Call:
        """The call with every leaf of its arguments changed."""
        args, kwargs = map_leaves(change, (self.args, self.kwargs))
        return Call(self.operator, args, kwargs)

    def with_layout(self, layout: Callable[[TensorSpec], TensorSpec]) -> Call:
        """The call with its floating tensors otherwise in memory."""

        def change(x: Any) -> Any:
            return layout(x) if isinstance(x, TensorSpec) and getattr(torch, x.dtype).is_floating_point else x

        return self.map(change)


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    return tree_map(change, tree, is_leaf=lambda x: isinstance(x, TensorSpec))


Kept = dict[str, dict[str, Call]]
"""Calls by overload and by how their arguments are written."""


def keep(kept: Kept, func: Any, args: Any, kwargs: Any) -> None:
    """Add a call to those of its overload, if none is like it and there is room."""
    its = kept.setdefault(str(func.name()), {})
    if len(its) < MOST_CALLS:
        specs, named = tree_map(_spec, (tuple(args), dict(kwargs or {})))
        its.setdefault(repr((specs, named)), Call(func, specs, named))


def merge(kept: Kept, others: Kept, most: int = MOST_CALLS) -> None:
    """Add calls, until there are `most` of an overload."""
    for name, calls in others.items():
        its = kept.setdefault(name, {})
        for words, call in calls.items():
            if len(its) < most:
                its.setdefault(words, call)


def _spec(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return TensorSpec(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))


def specs(call: Call) -> list[TensorSpec]:
    found: list[TensorSpec] = []
    call.map(lambda x: found.append(x) if isinstance(x, TensorSpec) else None)
    return found


def with_dtype(call: Call, before: str, after: str) -> Call:
    """The call with one dtype in the place of another, of tensors and of arguments."""
    old, new = getattr(torch, before), getattr(torch, after)

    def change(x: Any) -> Any:
        if isinstance(x, TensorSpec):
            return x._replace(dtype=after) if x.dtype == before else x
        return new if x is old else x

    return call.map(change)


def transposed(spec: TensorSpec) -> TensorSpec:
    """In memory with the last two dimensions swapped."""
    if len(spec.shape) < 2:
        return spec
    *front, rows, columns = spec.shape
    dense = _dense((*front, columns, rows))
    return spec._replace(stride=(*dense[:-2], dense[-1], dense[-2]))


def padded(spec: TensorSpec) -> TensorSpec:
    """In memory with a gap after each row, as the slice of a wider tensor has."""
    if len(spec.shape) < 2:
        return spec
    wide = (*spec.shape[:-1], spec.shape[-1] + 3)
    return spec._replace(stride=_dense(wide))


#: How operands lie in memory: as the model's do, and two ways that kernels are known to read wrongly.
LAYOUTS: Mapping[str, Callable[[TensorSpec], TensorSpec]] = {
    "as called": lambda spec: spec,
    "transposed": transposed,
    "padded rows": padded,
}


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(1, n) for n in shape[d + 1 :]) for d in range(len(shape)))


@dataclass
class Inputs:
    """Arguments of a call, with values, to be had on any device as often as wanted."""

    call: Call
    buffers: list[torch.Tensor] = field(default_factory=list)
    """The memory behind each tensor, in the order of the arguments."""

    def on(
        self, device: str | torch.device, dtype: torch.dtype | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh arguments on a device; with `dtype` every floating tensor, and argument, is of that."""
        buffers = iter(self.buffers)

        def make(x: Any) -> Any:
            if isinstance(x, TensorSpec):
                buffer = next(buffers)
                # Where nothing is left out, no view: some operators that work in place refuse one.
                whole = x.stride == _dense(x.shape) and all(x.shape)
                buffer = buffer.view(x.shape).clone() if whole else buffer.clone()
                if dtype is not None and buffer.is_floating_point():
                    buffer = buffer.to(dtype)
                return buffer.to(device) if whole else buffer.to(device).as_strided(x.shape, x.stride)
            if isinstance(x, torch.device):
                return torch.device(device)
            return dtype if dtype is not None and isinstance(x, torch.dtype) and x.is_floating_point else x

        args, kwargs = map_leaves(make, (self.call.args, self.call.kwargs))
        return args, kwargs


def make_inputs(call: Call, generator: torch.Generator) -> Inputs:
    """Random values for the call's tensors."""
    bounds = _bounds(call)
    inputs = Inputs(call)
    for index, spec in enumerate(specs(call)):
        size = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) if all(spec.shape) else 0
        dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            buffer = torch.randn(size, generator=generator)
            buffer = buffer.abs() + 0.1 if call.packet in POSITIVE else buffer
        elif dtype is torch.bool:
            buffer = torch.rand(size, generator=generator) < 0.8
        else:
            least = 1 if index and call.packet in DIVIDE else 0
            buffer = torch.randint(least, max(least + 1, bounds.get(index, 8)), (size,), generator=generator)
        if call.packet == "aten::_grouped_mm" and index == 2:
            # Where each expert's rows end: the last at the last row.
            buffer = torch.linspace(0, call.args[0].shape[0], size + 1)[1:]
        inputs.buffers.append(buffer.to(dtype))
    return inputs


def _bounds(call: Call) -> dict[int, int]:
    """Of tensors that index another one, by place, the length of what they index."""
    first = call.args[0] if call.args and isinstance(call.args[0], TensorSpec) else None
    if first is None or not first.shape:
        return {}
    if call.packet == "aten::embedding":
        return {1: first.shape[0]}
    if call.packet in ("aten::index", "aten::index_put", "aten::_index_put_impl"):
        given = [n for n, index in zip(first.shape, call.args[1], strict=False) if index is not None]
        return {1 + place: n for place, n in enumerate(given)}
    dimension = call.args[1] if len(call.args) > 1 else None
    if isinstance(dimension, int) and -len(first.shape) <= dimension < len(first.shape):
        return {1: first.shape[dimension]}
    return {}
