"""The same values in other memory layouts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from tasks.kernels.schema import Argument

LAYOUTS = ("contiguous", "strided", "padded", "transposed", "expanded", "offset", "mixed")


def relay(
    args: Sequence[Any], arguments: Sequence[Argument], fixed: Sequence[str], layout: str, choose: random.Random
) -> tuple[Any, ...]:
    """The arguments with every tensor in `layout`, but those named in `fixed`.

    `expanded` changes values (all of the first dimension become the first of them) and so is only for floating
    tensors that are not written to. `mixed` is another layout for each.
    """
    changed = []
    for value, argument in zip(args, arguments, strict=True):
        if isinstance(value, torch.Tensor) and argument.name not in fixed:
            chosen = choose.choice(LAYOUTS[:-1]) if layout == "mixed" else layout
            expandable = value.is_floating_point() and value.dim() >= 2 and not argument.mutated
            value = laid(value, "contiguous" if chosen == "expanded" and not expandable else chosen)
        changed.append(value)
    return tuple(changed)


def laid(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """One tensor's values in a layout; a tensor that is too small for it stays as it is."""
    shape = tuple(tensor.shape)
    if layout == "contiguous" or tensor.dim() == 0:
        return tensor.contiguous()
    if layout == "strided":
        return _within(tensor, (*shape[:-1], 2 * shape[-1]), lambda wide: wide[..., ::2])
    if layout == "padded":
        return _within(tensor, (*shape[:-1], shape[-1] + 3), lambda wide: wide[..., : shape[-1]])
    if layout == "offset":
        return _within(tensor, (tensor.numel() + 1,), lambda flat: flat[1:].view(shape))
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "expanded" and tensor.dim() >= 2 and shape[0]:
        return tensor[:1].contiguous().expand(shape)
    return tensor.contiguous()


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset, in memory of its own."""
    storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the tensor's storage, so that NaNs and what lies between its elements are compared, too."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have one shape and dtype and are equal bit for bit."""
    return left.shape == right.shape and left.dtype == right.dtype and torch.equal(_bits(left), _bits(right))


def first_difference(left: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
    """The first index at which two tensors differ bit for bit."""
    width = left.element_size()
    unequal = (_bits(left) != _bits(right)).view(-1, width).any(dim=1)
    return index_of(int(unequal.nonzero()[0]), left.shape)


def index_of(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """A flat index as one of each dimension."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of the tensor's storage and the one after its last."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have memory in common."""
    (start, end), (other, last) = span(left), span(right)
    return start < last and other < end


def _within(tensor: torch.Tensor, shape: tuple[int, ...], view: Any) -> torch.Tensor:
    """The values as a view of a larger tensor, whose other bytes are all ones: NaN in every floating dtype."""
    larger = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    raw(larger).fill_(0xFF if tensor.dtype.is_floating_point else 0x55)
    found: torch.Tensor = view(larger)
    return found.copy_(tensor)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():  # contiguous by torch's lights, whatever its strides, and then no view of other bytes
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return tensor.contiguous().reshape(-1).view(torch.uint8)
