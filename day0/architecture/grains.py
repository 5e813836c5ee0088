"""Which part of a weight an element of its stored tensors covers.

Every stored tensor of a weight is an array whose dimensions count blocks of the weight's own: packed values (2 or 8
elements of one row), scales (a row's 32 values, a 128 × 128 tile, a whole row). So one law splits them all: the slice
[a, b) of the weight's dimension is the slice [a / grain, ceil(b / grain)) of the stored one, and a must be a multiple.
"""

from __future__ import annotations

from dataclasses import dataclass

from day0.architecture.quantised import Companion

#: A grain of a dimension that is not divided along the weight's: one scale for a whole row, a shape record.
WHOLE = 0

#: Elements of one stored element's bits, by dtype: pairs of 4 bits in a byte, 8 of 4 bits or 4 of 8 in a word.
PACKING = {"U8": (2,), "I8": (2,), "I32": (8, 4), "U32": (8, 4)}

_LARGEST_GRAIN = 1 << 20


@dataclass(frozen=True, slots=True)
class Grain:
    """A dimension of a stored tensor: the weight's dimension that it counts blocks of (None: none), and their size."""

    dim: int | None
    size: int


def grains(
    stored: tuple[int, ...], weight: tuple[int, ...], dtype: str, companion: Companion | None
) -> tuple[Grain, ...] | None:
    """What each dimension of a stored tensor counts of a weight of shape `weight`; None: the shapes do not fit.

    `companion` is None for the weight under its own name, which may be packed too.
    """
    if companion is None and stored == weight:
        return tuple(Grain(dim, 1) for dim in range(len(weight)))
    role = companion.role if companion else "packed"
    if role == "whole":
        return tuple(Grain(None, WHOLE) for _ in stored)
    if role == "order":
        return (Grain(len(weight) - 1, 1),) if stored == weight[-1:] else None
    dims = list(range(len(weight)))
    if companion and companion.transposed:
        dims[-2:] = reversed(dims[-2:])
    if role != "packed" and 0 < len(stored) < len(weight) and stored == weight[: len(stored)]:
        return tuple(Grain(dim, 1) for dim in range(len(stored)))  # one a row: [N] beside [N, K]
    if stored in ((), (1,)) and weight != (1,):
        return tuple(Grain(None, WHOLE) for _ in stored) if role != "packed" else None
    if role == "packed" and len(stored) == len(weight) + 1:
        return _blocks(stored, weight)
    if len(stored) != len(dims):
        return None
    if role == "packed":
        return _packed(stored, weight, dtype, dims, companion)
    found = tuple(_grain(length, dim, weight[dim]) for length, dim in zip(stored, dims, strict=True))
    return None if None in found else tuple(grain for grain in found if grain)


def _blocks(stored: tuple[int, ...], weight: tuple[int, ...]) -> tuple[Grain, ...] | None:
    """Pairs of 4 bits, with the bytes of a block as a dimension of their own (gpt-oss): [.., K / 32, 16]."""
    *outer, blocks, size = stored
    if tuple(outer) != weight[:-1] or blocks * size * 2 != weight[-1]:
        return None
    last = len(weight) - 1
    return (*(Grain(dim, 1) for dim in range(last)), Grain(last, 2 * size), Grain(None, WHOLE))


def _packed(
    stored: tuple[int, ...], weight: tuple[int, ...], dtype: str, dims: list[int], companion: Companion | None
) -> tuple[Grain, ...] | None:
    """Values packed along one of the last two dimensions, or not at all."""
    exact = tuple(weight[dim] for dim in dims)
    if stored == exact:
        return tuple(Grain(dim, 1) for dim in dims) if companion is None or companion.transposed else None
    for factor in PACKING.get(dtype, ()):
        for packed in (len(dims) - 1, len(dims) - 2) if companion and companion.transposed else (len(dims) - 1,):
            shape = tuple(-(-n // factor) if i == packed else n for i, n in enumerate(exact))
            if shape == stored:
                return tuple(Grain(dim, factor if i == packed else 1) for i, dim in enumerate(dims))
    return None


def _grain(length: int, dim: int, whole: int) -> Grain | None:
    """The block size of a dimension: 1, all, or the power of two that gives `length` blocks."""
    if length == whole:
        return Grain(dim, 1)
    if length == 1:
        return Grain(None, WHOLE)
    size = 2
    while size <= _LARGEST_GRAIN:
        if -(-whole // size) == length:
            return Grain(dim, size)
        size *= 2
    return None
