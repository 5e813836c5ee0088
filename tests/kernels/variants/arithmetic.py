"""What implementations do differently: orders of summation, roundings, and approximate functions of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Outputs = tuple[torch.Tensor, ...]
Compute = Callable[..., Outputs]
NARROW = ("bfloat16", "float16")
WIDE = ("float32",)
ALL = (*WIDE, *NARROW)


@dataclass(frozen=True)
class Variants:
    """One kernel's implementations by name, with the dtypes in which they are honest, or wrong."""

    honest: Mapping[str, tuple[Compute, tuple[str, ...]]]
    wrong: Mapping[str, tuple[Compute, tuple[str, ...]]]


# Roundings.


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """To the nearest number of a narrower dtype, as float32."""
    return value.to(dtype).float()


def coarse(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Float32 with fewer bits of fraction, to the nearest: 10 are TF32's, 7 bfloat16's."""
    dropped = 23 - bits
    whole = value.contiguous().view(torch.int32)
    return ((whole + (1 << (dropped - 1))) >> dropped << dropped).view(torch.float32)


def cut(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded toward zero."""
    near = exact.to(dtype)
    # torch has no neighbours of float8, whose next code toward zero is the one below.
    if dtype.itemsize == 1:
        below = (near.view(torch.uint8) - 1).view(dtype)
    else:
        below = torch.nextafter(near, torch.zeros_like(near))
    beyond = near.double().abs() > exact.double().abs()
    if dtype.itemsize == 1:
        return torch.where(beyond, below.view(torch.uint8), near.view(torch.uint8)).view(dtype)
    found: torch.Tensor = torch.where(beyond, below, near)
    return found


def scattered(value: torch.Tensor, bits: float) -> torch.Tensor:
    """Relative errors of up to 2^-bits, which depend on the value alone, as those of approximate instructions do."""
    whole = value.contiguous().view(torch.int32).long()
    mixed = (whole * 2654435761 ^ (whole >> 7) * 40503) & 0xFFFF
    factor: torch.Tensor = 1 + (mixed.double() / 32768 - 1) * math.pow(2, -bits)
    return (value.double() * factor).float()


# Functions as NVIDIA's GPUs approximate them (PTX ISA 9.0: ex2, rcp, tanh, rsqrt .approx and their errors).


def exp2_approx(x: torch.Tensor) -> torch.Tensor:
    return scattered(torch.exp2(x), 22)


def exp_approx(x: torch.Tensor) -> torch.Tensor:
    """By the power of two of a rounded product, whose error grows with x."""
    return exp2_approx(x * math.log2(math.e))


def reciprocal_approx(x: torch.Tensor) -> torch.Tensor:
    return scattered(1 / x, 23)


def rsqrt_approx(x: torch.Tensor) -> torch.Tensor:
    return scattered(torch.rsqrt(x), 22.9)


def tanh_approx(x: torch.Tensor) -> torch.Tensor:
    return scattered(torch.tanh(x), 11)


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c, rounded once: a product of two float32 is exact in float64."""
    return (a.double() * b.double() + c.double()).float()


# Sums of float32 along the last dimension.


def running(terms: torch.Tensor) -> torch.Tensor:
    """One after another."""
    total = torch.zeros_like(terms[..., 0])
    for term in terms.movedim(-1, 0).contiguous():
        total = total + term
    return total


def running_fused(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of two, each added with one rounding."""
    total = torch.zeros_like(left[..., 0])
    for a, b in zip(left.movedim(-1, 0).contiguous(), right.movedim(-1, 0).contiguous(), strict=True):
        total = fused(a, b, total)
    return total


def lanes(terms: torch.Tensor, count: int) -> torch.Tensor:
    """As many running sums as a vector has lanes or a block threads, which are halved by pairs."""
    parts = running(_whole(terms, count).movedim(-2, -1))
    while parts.shape[-1] > 1:
        parts = parts[..., : parts.shape[-1] // 2] + parts[..., parts.shape[-1] // 2 :]
    return parts[..., 0]


def tiles(terms: torch.Tensor, count: int) -> torch.Tensor:
    """Tiles of `count` neighbours, each summed by itself and added to a running sum."""
    return running(running(_whole(terms, count)))


def pairwise(terms: torch.Tensor) -> torch.Tensor:
    size = 1 << max(0, terms.shape[-1] - 1).bit_length()
    return lanes(_whole(terms, size).flatten(-2), size)


def compensated(terms: torch.Tensor) -> torch.Tensor:
    """Kahan's sum."""
    total = torch.zeros_like(terms[..., 0])
    lost = torch.zeros_like(total)
    for term in terms.movedim(-1, 0):
        following = term - lost
        new = total + following
        lost = (new - total) - following
        total = new
    return total


def narrow_running(terms: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One after another, each sum rounded to a narrower dtype."""
    total = torch.zeros_like(terms[..., 0])
    for term in terms.movedim(-1, 0):
        total = rounded(total + term, dtype)
    return total


def _whole(terms: torch.Tensor, count: int) -> torch.Tensor:
    """Zeros after the last, and in rows of `count`."""
    short = -terms.shape[-1] % count
    padded = torch.nn.functional.pad(terms, (0, short))
    return padded.reshape(*terms.shape[:-1], padded.shape[-1] // count, count)


# Products of matrices (rows, inner) and (columns, inner) in float32.


def matmul_running(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    total = left.new_zeros(left.shape[0], right.shape[0])
    for a, b in zip(left.T.contiguous(), right.T.contiguous(), strict=True):
        total = total + a[:, None] * b
    return total


def matmul_tiles(left: torch.Tensor, right: torch.Tensor, count: int, splits: int = 1) -> torch.Tensor:
    """Products of tiles of `count` along the inner dimension are added one by one; in `splits` parts, whose sums are
    added at the end."""
    size = max(1, -(-left.shape[1] // splits))
    total = left.new_zeros(left.shape[0], right.shape[0])
    for start in range(0, left.shape[1], size):
        part = torch.zeros_like(total)
        for at in range(start, min(start + size, left.shape[1]), count):
            inside = slice(at, min(at + count, start + size))
            part = part + left[:, inside] @ right[:, inside].T
        total = total + part
    return total
