"""What operators answer whose result hangs on data, where there is none: taken to be so and so, and noted."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

#: What reads a tensor's value on the host. Without values the answer is taken to be 0 or False.
HOST_READS = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal")

#: What keeps the elements that a mask chooses. Without values it is taken to choose all.
SELECTIONS = ("aten::nonzero", "aten::masked_select", "aten::index.Tensor")


def read(func: Any, args: Any) -> Any:
    """0 in the type that the operator of HOST_READS answers in, where its tensor has no values; None: it has."""
    tensor = args[0]
    if not _without_values(tensor):
        return None
    if func.name() in ("aten::is_nonzero", "aten::equal") or tensor.dtype is torch.bool:
        return False
    return 0.0 if tensor.is_floating_point() else 0


def selected(name: str, args: Any) -> Any:
    """What an operator of SELECTIONS gives where its mask chooses all; None: it has values, or takes no mask."""
    source = args[0]
    if not _without_values(source):
        return None
    if name == "aten::nonzero":
        return source.new_empty((source.numel(), source.dim()), dtype=torch.long)
    if name == "aten::masked_select":
        return torch.broadcast_tensors(source, args[1])[0].reshape(-1)  # type: ignore[no-untyped-call]
    masks = [mask for mask in args[1] if mask is not None and mask.dtype in (torch.bool, torch.uint8)]
    # One mask from the first dimension on is what models write; other indices are left to the operator itself.
    if len(masks) != 1 or len(args[1]) != 1:
        return None
    return source.new_empty((masks[0].numel(), *source.shape[masks[0].dim() :]))


def _without_values(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_meta or isinstance(tensor, FakeTensor))
