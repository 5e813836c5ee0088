"""Residual + RMSNorm in Triton: a row stays in registers between its sum and its result; each number is read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Elements of the longest row that is held in registers; longer ones are read twice.
_LONGEST = 16384
#: Elements for each warp: 32 for each thread are four loads of 16 bytes of either operand, in flight at once.
_WARP = 1024


@triton.jit
def _added(x, residual, row, column, x_stride, residual_stride, inside):
    left = tl.load(x + row * x_stride + column, inside, 0.0, eviction_policy="evict_first")
    right = tl.load(residual + row * residual_stride + column, inside, 0.0, eviction_policy="evict_first")
    return left.to(tl.float32) + right.to(tl.float32)


#: Numbers of rows and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["rows"])
def _rows(x, residual, weight, out, total, rows, hidden, x_stride, residual_stride, eps,
          ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """ROWS rows of at most BLOCK numbers."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < hidden)
    row = row.to(tl.int64)
    by = tl.load(weight + column, column < hidden, 0.0, eviction_policy="evict_last").to(tl.float32)
    added = _added(x, residual, row, column, x_stride, residual_stride, inside)
    scale = tl.rsqrt(tl.sum(added * added, 1)[:, None] / hidden + eps)
    place = row * hidden + column
    tl.store(total + place, added.to(total.dtype.element_ty), inside)
    tl.store(out + place, (added * scale * by).to(out.dtype.element_ty), inside)


@triton.jit
def _long_row(x, residual, weight, out, total, hidden, x_stride, residual_stride, eps, BLOCK: tl.constexpr):
    """One row of any length, in pieces of BLOCK."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, hidden, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        added = _added(x, residual, row, column, x_stride, residual_stride, column < hidden)
        squares += added * added
    scale = tl.rsqrt(tl.sum(squares, 0) / hidden + eps)
    for begin in range(0, hidden, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < hidden
        added = _added(x, residual, row, column, x_stride, residual_stride, inside)
        by = tl.load(weight + column, inside, 0.0).to(tl.float32)
        tl.store(total + row * hidden + column, added.to(total.dtype.element_ty), inside)
        tl.store(out + row * hidden + column, (added * scale * by).to(out.dtype.element_ty), inside)


def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """`(norm(x + residual) * weight, x + residual)` over the last dimension."""
    hidden = x.shape[-1]
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(f"fused_add_rms_norm: residual is {_said(residual)} and x {_said(x)}")
    if weight.shape != (hidden,):
        raise ValueError(f"fused_add_rms_norm: weight is {_said(weight)}, and rows have {hidden} numbers")
    out, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    if not x.numel():
        return out, total
    x, residual = (_with_rows(tensor.reshape(-1, hidden)) for tensor in (x, residual))
    weight = weight.contiguous()
    rows = x.shape[0]
    arguments = (x, residual, weight, out, total)
    with torch.accelerator.device_index(x.device.index):
        if hidden > _LONGEST:
            strides = (x.stride(0), residual.stride(0))
            _long_row[(rows,)](*arguments, hidden, *strides, eps, BLOCK=8192, num_warps=8)
        else:
            tile, block, warps = configuration(rows, hidden)
            strides = (x.stride(0), residual.stride(0))
            grid = (triton.cdiv(rows, tile),)
            _rows[grid](*arguments, rows, hidden, *strides, eps, ROWS=tile, BLOCK=block, num_warps=warps)
    return out, total


def configuration(rows: int, hidden: int) -> tuple[int, int, int]:
    """Rows of a tile, its width, and warps. Few rows have more warps each, for there are fewer tiles than places."""
    block = triton.next_power_of_2(hidden)
    tile = max(1, min(2048 // block, triton.next_power_of_2(rows)))
    warps = triton.cdiv(tile * block, _WARP if rows > 1024 else _WARP // 4)
    return tile, block, max(1, min(16, triton.next_power_of_2(warps)))


def _with_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _said(x: torch.Tensor) -> str:
    return f"{tuple(x.shape)} {x.dtype}"


_TYPES = ("*bf16", "*fp16", "*fp32")

#: Rows and their length: decode and prefill of models from 2048 to 16384, and one too long for registers.
_SIZES = [(rows, hidden) for rows in (16, 4096) for hidden in (2048, 4096, 7168, 16384)]
_INTEGERS = {"rows": "i32", "hidden": "i32", "x_stride": "i32", "residual_stride": "i32", "eps": "fp32"}

AHEAD = [
    {
        "name": f"rows-{type[1:]}-{rows}-{hidden}",
        "function": _rows,
        "signature": dict.fromkeys(("x", "residual", "weight", "out", "total"), type) | _INTEGERS,
        "config": dict(zip(("ROWS", "BLOCK", "num_warps"), configuration(rows, hidden), strict=True)),
        "divisible": ("x", "residual", "weight", "out", "total", "hidden", "x_stride", "residual_stride"),
    }
    for type in _TYPES
    for rows, hidden in _SIZES
] + [
    {
        "name": f"long-row-{type[1:]}",
        "function": _long_row,
        "signature": dict.fromkeys(("x", "residual", "weight", "out", "total"), type)
        | {name: kind for name, kind in _INTEGERS.items() if name != "rows"},
        "config": {"BLOCK": 8192, "num_warps": 8},
        "divisible": ("x", "residual", "weight", "out", "total", "hidden", "x_stride", "residual_stride"),
    }
    for type in _TYPES
]
