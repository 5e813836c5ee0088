"""Gated activation in Triton: each element read once, computed in float32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _exponential(x, ACCURATE: tl.constexpr):
    """e^x. The machine's own is good to 2^-22 and the argument's rounding; accurate: to one unit in the last place."""
    if ACCURATE:
        # x = n ln 2 + r, ln 2 in two parts (Cody and Waite), and Cephes' polynomial of expf on |r| <= ln(2) / 2.
        n = tl.floor(tl.minimum(tl.maximum(x, -126.0), 128.0) * 1.4426950408889634 + 0.5)
        r = tl.fma(n, -0.693359375, x)
        r = tl.fma(n, 2.12194440e-4, r)
        p = tl.fma(r, 1.9875691500e-4, 1.3981999507e-3)
        p = tl.fma(p, r, 8.3334519073e-3)
        p = tl.fma(p, r, 4.1665795894e-2)
        p = tl.fma(p, r, 1.6666665459e-1)
        p = tl.fma(p, r, 5.0000001201e-1)
        p = tl.fma(p * r, r, r) + 1.0
        half = tl.floor(n * 0.5)  # 2^n itself may overflow where the product does not
        first = ((half.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        second = (((n - half).to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        inside = p * first * second
        return tl.where(x > 88.8, float("inf"), tl.where(x < -87.4, 0.0, tl.where(x == x, inside, x)))
    return tl.exp(x)


@triton.jit
def _erfc_of_positive(x, ACCURATE: tl.constexpr):
    """1 - erf(x) for x >= 0, relative error below 1.2e-7 (Numerical Recipes, 2nd edition, section 6.2, erfcc)."""
    t = _over(1.0, tl.fma(x, 0.5, 1.0), ACCURATE)
    p = tl.fma(t, 0.17087277, -0.82215223)
    p = tl.fma(p, t, 1.48851587)
    p = tl.fma(p, t, -1.13520398)
    p = tl.fma(p, t, 0.27886807)
    p = tl.fma(p, t, -0.18628806)
    p = tl.fma(p, t, 0.09678418)
    p = tl.fma(p, t, 0.37409196)
    p = tl.fma(p, t, 1.00002368)
    p = tl.fma(p, t, -1.26551223)
    return t * _exponential(tl.fma(x, -x, p), ACCURATE)


@triton.jit
def _over(dividend, divisor, ACCURATE: tl.constexpr):
    if ACCURATE:
        return tl.math.div_rn(dividend, divisor)
    return dividend / divisor


@triton.jit
def _activated(gate, alpha, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr):
    if ACTIVATION == "gelu":
        # x (1 + erf(x / sqrt 2)) / 2, by erfc of the magnitude: 1 + erf loses all digits below about -5.
        half = 0.5 * _erfc_of_positive(tl.abs(gate) * 0.7071067811865476, ACCURATE)
        return gate * tl.where(gate < 0.0, half, 1.0 - half)
    if ACTIVATION == "gelu_tanh":
        # (1 + tanh u) / 2 = sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
        inner = tl.fma(gate * gate * gate, 0.044715, gate) * 1.5957691216057308
    else:
        inner = alpha * gate
    return gate * _over(1.0, 1.0 + _exponential(-inner, ACCURATE), ACCURATE)


#: Numbers of rows and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["chunks"])
def _row(x, out, size, stride, chunks, limit, alpha, beta, ACTIVATION: tl.constexpr, LIMITED: tl.constexpr,
         INTERLEAVED: tl.constexpr, ACCURATE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """BLOCK results of one row."""
    row = (tl.program_id(0) // chunks).to(tl.int64)
    begin = tl.program_id(0) % chunks * BLOCK
    column = begin + tl.arange(0, BLOCK)
    if INTERLEAVED:
        place = 2 * begin + tl.arange(0, 2 * BLOCK)
        pairs = tl.load(x + row * stride + place, place < 2 * size, 0.0, eviction_policy="evict_first")
        gate, up = tl.split(tl.reshape(pairs, [BLOCK, 2]))
    else:
        gate = tl.load(x + row * stride + column, column < size, 0.0, eviction_policy="evict_first")
        up = tl.load(x + row * stride + size + column, column < size, 0.0, eviction_policy="evict_first")
    gate, up = gate.to(tl.float32), up.to(tl.float32)
    if LIMITED:  # by comparisons, which let NaNs through
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    result = _activated(gate, alpha, ACTIVATION, ACCURATE) * (up + beta)
    tl.store(out + row * size + column, result.to(out.dtype.element_ty), column < size)


def run(
    x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
) -> torch.Tensor:
    """`activation(gate) * (up + beta)` for x of (…, 2 size)."""
    if activation not in ("silu", "gelu", "gelu_tanh"):
        raise ValueError(f"gated_activation: activation must be silu, gelu or gelu_tanh, got {activation!r}")
    if x.shape[-1] % 2:
        raise ValueError(f"gated_activation: rows of {x.shape[-1]} numbers have no two halves")
    size = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    x = x.reshape(-1, 2 * size)
    x = x if x.stride(1) == 1 else x.contiguous()
    block, warps = configuration(x.shape[0], size)
    chunks = triton.cdiv(size, block)
    numbers = (size, x.stride(0), chunks, 0.0 if limit is None else limit, alpha, beta)
    options = {"ACTIVATION": activation, "LIMITED": limit is not None, "INTERLEAVED": interleaved}
    accurate = x.dtype == torch.float32
    with torch.accelerator.device_index(x.device.index):
        _row[(x.shape[0] * chunks,)](x, out, *numbers, **options, ACCURATE=accurate, BLOCK=block, num_warps=warps)
    return out


def configuration(rows: int, size: int) -> tuple[int, int]:
    """Results of a tile, and warps: 16 results for each thread where there are many rows, 8 otherwise."""
    block = min(triton.next_power_of_2(size), 2048 if rows * size >= 1 << 22 else 1024)
    return block, max(1, min(4, block // 256))


_TYPES = ("*bf16", "*fp16", "*fp32")

_NUMBERS = {"size": "i32", "stride": "i32", "chunks": "i32", "limit": "fp32", "alpha": "fp32", "beta": "fp32"}
#: Activation, limited, interleaved: Llama, Gemma, and gpt-oss.
_KINDS = [("silu", False, False), ("gelu", False, False), ("gelu_tanh", False, False), ("silu", True, True)]

AHEAD = [
    {
        "name": f"{activation}{'-interleaved' if interleaved else ''}-{type[1:]}-{rows}",
        "function": _row,
        "signature": {"x": type, "out": type} | _NUMBERS,
        "config": {
            "ACTIVATION": activation,
            "LIMITED": limited,
            "INTERLEAVED": interleaved,
            "ACCURATE": type == "*fp32",
        }
        | dict(zip(("BLOCK", "num_warps"), configuration(rows, 8192), strict=True)),
        "divisible": ("x", "out", "size", "stride"),
    }
    for type in _TYPES
    for activation, limited, interleaved in _KINDS
    for rows in (16, 4096)
]
