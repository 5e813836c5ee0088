"""Whether a device's result is right: its error against float64 beside the CPU's own at the same dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

#: The device's mean and largest error may be so many times the framework's own. Source: msprobe's ratios for its
#: strictest level of operators, an NPU's error over a GPU's, both against a golden result of high precision.
MEAN_RATIO, LARGEST_RATIO = 2, 10

#: Operators that choose among equals: another choice of the same value is no fault. The places of the dimension among
#: the arguments, and of the indices among the results.
CHOOSE = {
    "aten::argmax": (1, 0),
    "aten::argmin": (1, 0),
    "aten::max.dim": (1, 1),
    "aten::min.dim": (1, 1),
    "aten::sort": (1, 1),
    "aten::sort.stable": (2, 1),
    "aten::topk": (2, 1),
}


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _numbers(value: Any) -> list[Any]:
    """What an operator answers that is no tensor: a value read on the host."""
    return [x for x in tree_leaves(value) if isinstance(x, bool | int | float)]


def difference(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any, own: Any, exact: Any
) -> str | None:
    """What is wrong with the result `found`; None if nothing.

    Args:
        name: the overload's.
        args, kwargs: of the call on the CPU.
        own: the CPU's result at the same dtype.
        exact: the CPU's result in float64.
    """
    numbers, its = _numbers(found), _numbers(own)
    if numbers != its and any(a != b and not (a != a and b != b) for a, b in zip(numbers, its, strict=False)):
        return f"{numbers}, not {its}"
    results = list(zip(tensors(found), tensors(own), tensors(exact), strict=False))
    if len(tensors(found)) != len(tensors(own)) or len(results) != len(tensors(own)):
        return f"{len(tensors(found))} results, not {len(tensors(own))}"
    for place, (f, o, e) in enumerate(results):
        if (f.shape, f.dtype) != (o.shape, o.dtype):
            return f"a result is {f.dtype} of shape {list(f.shape)}, not {o.dtype} of {list(o.shape)}"
        if name.startswith(("aten::empty", "aten::new_empty")):
            continue
        f = f.cpu()
        if o.is_floating_point():
            why = _floats(f, o, e)
        elif name in CHOOSE and CHOOSE[name][1] == place:
            why = _choices(name, args, kwargs, f, o)
        else:
            why = None if torch.equal(f, o) else f"{int((f != o).sum())} of {o.numel()} values differ"
        if why:
            return why
    return None


def _floats(found: torch.Tensor, own: torch.Tensor, exact: torch.Tensor) -> str | None:
    f, o, e = (x.to(torch.float64) for x in (found, own, exact))
    # Where the CPU has no number, the device may have none either, and nowhere else. An overflow to infinity counts.
    if not torch.equal(torch.isnan(f), torch.isnan(o)):
        return f"{int((torch.isnan(f) != torch.isnan(o)).sum())} values are NaN on one side only"
    infinite = torch.isinf(f) | torch.isinf(o)
    if not torch.equal(f[infinite], o[infinite]):
        return f"{int((f[infinite] != o[infinite]).sum())} values are infinite on one side only"
    finite = torch.isfinite(o) & torch.isfinite(e)
    if not bool(finite.any()):
        return None
    error, its, size = (f - e).abs()[finite], (o - e).abs()[finite], e.abs()[finite]
    epsilon = torch.finfo(own.dtype).eps
    # A result that the CPU rounds once has a mean error of about a quarter of epsilon; an exact one stays exact.
    rounded = epsilon if bool(its.any()) else 0.0
    mean = MEAN_RATIO * its.mean() + rounded / 4 * size.mean()
    largest = LARGEST_RATIO * its.max() + rounded * size.max()
    if error.mean() <= mean and error.max() <= largest:
        return None
    return (
        f"mean error {float(error.mean()):.2g} against float64, largest {float(error.max()):.2g}; "
        f"the CPU's own at {str(own.dtype).removeprefix('torch.')}: {float(its.mean()):.2g} and {float(its.max()):.2g}"
    )


def _choices(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: torch.Tensor, own: torch.Tensor
) -> str | None:
    values, (place, _) = args[0], CHOOSE[name]
    dimension = args[place] if len(args) > place else kwargs.get("dim", -1)
    if dimension is None:
        values, dimension = values.flatten(), 0
    dimension = dimension if isinstance(dimension, int) and not isinstance(dimension, bool) else -1
    if bool(((found < 0) | (found >= max(1, values.shape[dimension]))).any()):
        return "an index is out of bounds"
    if own.dim() < values.dim():
        found, own = found.unsqueeze(dimension), own.unsqueeze(dimension)
    differ = values.gather(dimension, found) != values.gather(dimension, own)
    return f"{int(differ.sum())} of {own.numel()} choices are of other values" if bool(differ.any()) else None
