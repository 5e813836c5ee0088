"""Kernels in the place of torch's operators that the target lacks, under its dispatch key."""

import warnings
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .counts import Use

LIBRARIES: list[torch.library.Library] = []


def replace(operator: str, entry: dict[str, Any], kernel: Any) -> None:
    """Have the kernel answer the calls of an overload such as `aten::silu`; what it fails is computed on the CPU.

    Raises:
        ValueError: this torch has no such operator, or it takes other arguments.
    """
    namespace, _, rest = operator.partition("::")
    packet, _, which = rest.partition(".")
    target = getattr(getattr(getattr(torch.ops, namespace), packet, None), which or "default", None)
    if target is None:
        raise ValueError(f"torch {torch.__version__} has no operator {operator}")
    own = getattr(torch.ops.day0, entry["name"]).default._schema.arguments
    _check_arguments(own, target._schema.arguments)
    # On the CPU itself what was there before answers, looked up while it is there. Elsewhere the scan found that the
    # target has none, or one that is wrong.
    before = torch.library.get_kernel(operator, "CPU") if entry["key"] == "CPU" else None
    use = Use(operator, entry["name"])
    declared = target._schema.arguments

    def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(declared, len(own), args, kwargs)
        if bound is not None and _accepted(entry, bound):
            try:
                result = kernel(*bound)
            except Exception as error:  # whatever a kernel raises, the engine goes on and the failure is on record
                use.failed(error)
            else:
                use.answered()
                return result
        else:
            use.declined += 1
        return before.call_boxed(keyset, *args, **kwargs) if before else _on_cpu(target, args, kwargs)

    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")  # it is meant to override
        library.impl(rest, call, entry["key"], with_keyset=True)  # type: ignore[no-untyped-call]
    LIBRARIES.append(library)


def _check_arguments(own: Any, its: Any) -> None:
    if len(own) > len(its):
        raise ValueError("the kernel takes more arguments")
    for place, (mine, other) in enumerate(zip(own, its, strict=False)):
        if ("Tensor" in str(mine.type)) != ("Tensor" in str(other.type)):
            raise ValueError(f"argument {place} is {other.type} there and {mine.type} here")
    if extra := next((argument for argument in its[len(own) :] if not argument.has_default_value()), None):
        raise ValueError(f"the kernel takes no {extra.name}, which is always given")
    if any(argument.alias_info is not None and argument.alias_info.is_write for argument in (*own, *its)):
        raise ValueError("it writes to its arguments")


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
    tensors = [x for x in bound if isinstance(x, torch.Tensor) and x.dim() and x.is_floating_point()]
    most = entry["elements"]
    return bool(tensors) and all(x.dtype in entry["dtypes"] and (most is None or x.numel() <= most) for x in tensors)


def _on_cpu(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on copies of its operands, its results copied back: the target itself has nothing for it."""
    tensors: list[torch.Tensor] = []

    def there(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return value.cpu()

    result = target(*tree_map(there, args), **tree_map(there, kwargs))
    device = tensors[0].device
    return tree_map(lambda value: value.to(device) if isinstance(value, torch.Tensor) else value, result)
