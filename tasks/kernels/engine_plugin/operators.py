"""Kernels in the place of torch's operators that a device lacks or computes wrongly, under its dispatch key.

Imports nothing of day0: it is copied beside the engine's plugin, and `tasks/kernels/dispatch.py` uses it here.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .counts import Use


def replace(
    operator: str, entry: dict[str, Any], kernel: Callable[..., Any], *, wrong: bool = False
) -> tuple[torch.library.Library, Use]:
    """Have the kernel answer the calls of an overload such as `aten::silu`.

    What it fails, and what it was not accepted for, is answered by what was there before, or else on the CPU.

    Args:
        entry: `name`, the kernel's operator `day0::NAME`; `key`, the dispatch key; `dtypes` that it was accepted for,
            and of at most how many `elements` (None: any number).
        wrong: what is there before computes wrongly, so that the CPU answers.

    Returns:
        The registration, which lasts until the library is destroyed, and the counts.

    Raises:
        ValueError: this torch has no such operator, or it takes other arguments.
    """
    namespace, _, rest = operator.partition("::")
    packet, _, which = rest.partition(".")
    target = getattr(getattr(getattr(torch.ops, namespace), packet, None), which or "default", None)
    if target is None:
        raise ValueError(f"torch {torch.__version__} has no operator {operator}")
    own, declared = getattr(torch.ops.day0, entry["name"]).default._schema.arguments, target._schema.arguments
    _check_arguments(own, declared)
    # A structured operator has a computed kernel everywhere; where its out= overload is missing it raises.
    there = not wrong and torch._C._dispatch_has_computed_kernel_for_dispatch_key(target.name(), entry["key"])
    before = torch.library.get_kernel(target.name(), entry["key"]) if there else None
    use = Use(operator, entry["name"])

    def otherwise(keyset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal before
        if before is not None:
            try:
                return before.call_boxed(keyset, *args, **kwargs)
            except NotImplementedError:
                before = None
        return _on_cpu(target, args, kwargs)

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(declared, len(own), args, kwargs)
        if bound is None or not _accepted(entry, bound):
            use.declined += 1
            return otherwise(keyset, args, kwargs)
        return use.answer(kernel, bound, lambda: otherwise(keyset, args, kwargs))

    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # it is meant to override
        library.impl(rest, call, entry["key"], with_keyset=True)  # type: ignore[no-untyped-call]
    return library, use


def _check_arguments(own: Any, its: Any) -> None:
    if _writes(own) != _writes(its):
        raise ValueError("only one of the two writes to its arguments")
    if len(own) > len(its):
        raise ValueError("the kernel takes more arguments")
    for place, (mine, other) in enumerate(zip(own, its, strict=False)):
        if ("Tensor" in str(mine.type)) != ("Tensor" in str(other.type)):
            raise ValueError(f"argument {place} is {other.type} there and {mine.type} here")
    if extra := next((argument for argument in its[len(own) :] if not argument.has_default_value()), None):
        raise ValueError(f"the kernel takes no {extra.name}, which is always given")


def _writes(arguments: Any) -> bool:
    return any(argument.alias_info is not None and argument.alias_info.is_write for argument in arguments)


def _bound(declared: Any, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The kernel's arguments: the operator's first ones. None where another one is not as it is by default."""
    bound = []
    for place, argument in enumerate(declared):
        value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        if place < count:
            bound.append(value)
        elif value != argument.default_value:
            return None
    return bound


def _accepted(entry: dict[str, Any], bound: list[Any]) -> bool:
    # A number beside a tensor comes as a tensor without dimensions.
    tensors = [x for x in bound if isinstance(x, torch.Tensor) and x.dim()]
    floating = [x for x in tensors if x.is_floating_point()]
    most = entry["elements"]
    small = most is None or all(x.numel() <= most for x in tensors)
    return bool(floating) and small and all(x.dtype in entry["dtypes"] for x in floating)


def _on_cpu(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call computed on the CPU: operands are copied there, results and what was written to are copied back."""
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def there(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not isinstance(value, torch.Tensor):
            return value
        pairs.append((value, value.cpu()))
        return pairs[-1][1]

    cpu_args, cpu_kwargs = tree_map(there, (args, kwargs))
    result = target(*cpu_args, **cpu_kwargs)
    device = next((own.device for own, _ in pairs if own.device.type != "cpu"), kwargs.get("device"))
    if _writes(target._schema.arguments):
        for own, copied in pairs:
            if own.device.type != "cpu":
                own.copy_(copied)

    def back(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return next((own for own, copied in pairs if copied is value), value.to(device))

    return tree_map(back, result)
