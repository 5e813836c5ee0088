"""Grouped matrix product in Triton: tiles find their expert on the device, so that no launch waits for it.

Each expert's rows are cut into tiles; a tile's number is looked up in the running sum of the experts' tiles. Experts
without rows have none, and tiles past the last do nothing. Rows of no expert are one more expert, whose results are
zeros. Every sum is made by one program in a fixed order.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

#: Bytes of shared memory of a program, by architecture, and of those that are not named.
_SHARED = {"sm_80": 166912, "sm_86": 101376, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}
_LEAST_SHARED = 65536


@triton.jit
def _codes(codes, NATIVE: tl.constexpr):
    """Float8_e4m3fn as float16, exactly. Not native: of their bits, as uint8."""
    if NATIVE:
        return codes.to(tl.float16)
    else:
        wide = codes.to(tl.uint16)
        size = ((wide & 0x7F) << 7).to(tl.float16, bitcast=True) * 256.0
        size = tl.where((wide & 0x7F) == 0x7F, float("nan"), size).to(tl.float16)
        return tl.where(wide >= 0x80, -size, size)


@triton.jit
def _is_special(scale):
    return (scale != scale) | (tl.abs(scale) == float("inf"))


#: Numbers of rows and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["rows", "experts", "x_scale_stride", "scale_expert", "scale_column"])
def _tile(x, weight, ends, x_scale, weight_scale, out, rows, columns, inner, experts, x_stride, expert_stride,
          column_stride, x_scale_stride, scale_expert, scale_column, BLOCK_ROWS: tl.constexpr,
          BLOCK_COLUMNS: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
          INNER: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr, FP8: tl.constexpr, FP8_ROWS: tl.constexpr,
          NATIVE: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """ROWS rows of one expert by COLUMNS columns. WHOLE: no piece of the inner dimension is cut off.

    The inner dimension is taken INNER at a time, in FP8 PARTS pieces to each block that has a scale of its own.
    """
    across = tl.cdiv(columns, COLUMNS)
    tile = tl.program_id(0) // across
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)

    number = tl.arange(0, EXPERTS)
    last = tl.minimum(tl.load(ends + number, number < experts, rows), rows)
    first = tl.minimum(tl.load(ends + number - 1, (number > 0) & (number <= experts), 0), rows)
    before = tl.cumsum(tl.cdiv(tl.maximum(last - first, 0), ROWS), 0)
    expert = tl.sum((before <= tile).to(tl.int32), 0)
    if expert > experts:
        return
    mine = number == expert
    begin, end = tl.sum(tl.where(mine, first, 0), 0), tl.sum(tl.where(mine, last, 0), 0)
    earlier = tl.sum(tl.where(number == expert - 1, before, 0), 0)
    row = begin + (tile - earlier) * ROWS + tl.arange(0, ROWS)
    target = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    inside = (row < end)[:, None] & (column < columns)[None, :]
    if expert == experts:
        tl.store(target, tl.zeros([ROWS, COLUMNS], out.dtype.element_ty), inside)
        return

    # Rows and columns past the end are the last ones again: their results are not stored.
    read_row = tl.minimum(row, end - 1).to(tl.int64)
    read_column = tl.minimum(column, columns - 1)
    step = tl.arange(0, INNER)
    x_at = x + read_row[:, None] * x_stride + step[None, :]
    weight_at = weight + expert.to(tl.int64) * expert_stride + read_column.to(tl.int64)[None, :] * column_stride
    weight_at += step[:, None]
    if FP8:
        scale_at = weight_scale + expert.to(tl.int64) * scale_expert + (read_column // BLOCK_ROWS) * scale_column
        x_scale_at = x_scale + read_row * x_scale_stride
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    pieces = tl.cdiv(inner, BLOCK_COLUMNS) * PARTS if FP8 else tl.cdiv(inner, INNER)
    for piece in tl.range(0, pieces, num_stages=STAGES):
        if FP8:
            within = piece % PARTS * INNER
            at = piece // PARTS * BLOCK_COLUMNS + within
            there = (at + step < inner) & (within + step < BLOCK_COLUMNS)
        else:
            at = piece * INNER
            there = at + step < inner
        if WHOLE:
            left = tl.load(x_at + at)
            right = tl.load(weight_at + at, eviction_policy="evict_first")
        else:
            left = tl.load(x_at + at, there[None, :], 0.0)
            right = tl.load(weight_at + at, there[:, None], 0.0, eviction_policy="evict_first")
        if FP8:
            left = _codes(left, NATIVE) if FP8_ROWS else left
            right = _codes(right, NATIVE)
            # A scale that is no number belongs to each element: zeros times infinity are NaN.
            scale = tl.load(scale_at + piece // PARTS)
            special = _is_special(scale)
            by = tl.where(special, scale, 1.0)[None, :]
            if left.dtype == tl.float16:
                right = right * by.to(tl.float16)
            else:  # by float32: straight to bfloat16 is a slow instruction
                right = (right.to(tl.float32) * by).to(left.dtype)
            scale = tl.where(special, 1.0, scale)
            if FP8_ROWS:
                row_scale = tl.load(x_scale_at + piece // PARTS)
                special = _is_special(row_scale)
                left = left * tl.where(special, row_scale, 1.0).to(tl.float16)[:, None]
                row_scale = tl.where(special, 1.0, row_scale)
            if not WHOLE:
                left = tl.where(there[None, :], left, 0.0)
                right = tl.where(there[:, None], right, 0.0)
            product = tl.dot(left, right, input_precision="ieee") * scale[None, :]
            total += product * row_scale[:, None] if FP8_ROWS else product
        else:
            total = tl.dot(left, right, total, input_precision="ieee")
    tl.store(target, total.to(out.dtype.element_ty), inside)


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    block_rows: int,
    block_columns: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """x (rows, inner) times the weights (experts, columns, inner), transposed, as `dtype`, (rows, columns)."""
    experts, columns, inner = weight.shape
    rows = x.shape[0]
    _check(x, weight, ends, x_scale, weight_scale, block_rows, block_columns, dtype)
    if not rows or not columns or not inner:
        return torch.zeros(rows, columns, dtype=dtype, device=x.device)
    out = torch.empty(rows, columns, dtype=dtype, device=x.device)
    x, weight = (given if given.stride(-1) == 1 else given.contiguous() for given in (x, weight))
    fp8, fp8_rows = weight_scale is not None, x_scale is not None
    native = not fp8 or has_native_fp8(x.device)
    data = [x, weight] if native else [x.view(torch.uint8) if fp8_rows else x, weight.view(torch.uint8)]
    x_scale, weight_scale = (None if given is None else given.contiguous() for given in (x_scale, weight_scale))
    strides = [x.stride(0), weight.stride(0), weight.stride(1), x_scale.stride(0) if fp8_rows else 0]
    strides += [weight_scale.stride(0), weight_scale.stride(1)] if fp8 else [0, 0]
    options = configuration(rows, experts, inner, dtype, block_columns if fp8 else 0, shared_memory(x.device))
    tiles = triton.cdiv(rows, options["ROWS"]) + min(rows, experts + 1)
    options |= {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns, "FP8": fp8, "FP8_ROWS": fp8_rows}
    with torch.accelerator.device_index(x.device.index):
        _tile[(tiles * triton.cdiv(columns, options["COLUMNS"]),)](
            *data, ends.contiguous(), *(ends if given is None else given for given in (x_scale, weight_scale)), out,
            rows, columns, inner, experts, *strides, **options, NATIVE=native,
        )  # fmt: skip
    return out


def configuration(
    rows: int, experts: int, inner: int, dtype: torch.dtype, block_columns: int, shared: int
) -> dict[str, int | bool]:
    """Sizes of a tile, from how many rows an expert has at the mean; `block_columns`: of FP8, else 0.

    `shared` is the bytes of shared memory that a program may have: they bound the pieces that are on their way.
    """
    mean = triton.cdiv(rows, experts)
    if dtype == torch.float32:  # without matrix units
        tile, across, step, stages, warps = 16, 32, 32, 2, 4
    elif mean <= 32:
        tile, across, step, stages, warps = max(16, triton.next_power_of_2(mean)), 64, 128, 4, 4
    elif mean <= 64 or block_columns:
        tile, across, step, stages, warps = 64, 128, 64, 4, 4
    else:
        tile, across, step, stages, warps = 128, 128, 64, 4, 8
    parts = 1
    if block_columns:
        step = max(16, min(step, triton.next_power_of_2(block_columns)))
        parts = triton.cdiv(block_columns, step)
    stages = max(2, min(stages, shared // ((tile + across) * step * 2 + 2048)))
    whole = inner % step == 0 and block_columns % step == 0
    options = {"ROWS": tile, "COLUMNS": across, "INNER": step, "PARTS": parts, "WHOLE": whole, "STAGES": stages}
    return options | {"EXPERTS": triton.next_power_of_2(experts + 1), "num_warps": warps, "num_stages": stages}


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have; where the device does not say, the least of any."""
    if device.type != "cuda" or torch.version.hip:
        return _LEAST_SHARED
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    ends: torch.Tensor,
    x_scale: torch.Tensor | None,
    weight_scale: torch.Tensor | None,
    block_rows: int,
    block_columns: int,
    dtype: torch.dtype,
) -> None:
    experts, columns, inner = weight.shape
    fp8 = torch.float8_e4m3fn
    if x.shape[1] != inner or ends.shape != (experts,) or ends.dtype != torch.int32:
        raise ValueError(
            f"grouped_matmul: x {tuple(x.shape)}, weight {tuple(weight.shape)} and ends {tuple(ends.shape)} "
            f"{ends.dtype} do not belong together"
        )
    if (weight_scale is not None) != (weight.dtype == fp8) or (x_scale is not None) != (x.dtype == fp8):
        raise ValueError("grouped_matmul: FP8 has scales, and nothing else has")
    if x_scale is not None and weight_scale is None:
        raise ValueError("grouped_matmul: rows in FP8 go with weights in FP8")
    if (x_scale is None and x.dtype != dtype) or (weight_scale is None and weight.dtype != dtype):
        raise ValueError(f"grouped_matmul: x is {x.dtype}, weight {weight.dtype}, and the result is to be {dtype}")
    if weight_scale is None:
        return
    if block_rows < 1 or block_columns < 1:
        raise ValueError(f"grouped_matmul: a block must have rows and columns, got {block_rows} by {block_columns}")
    across = -(-inner // block_columns)
    wanted = (experts, -(-columns // block_rows), across)
    if tuple(weight_scale.shape) != wanted:
        raise ValueError(f"grouped_matmul: weight_scale is {tuple(weight_scale.shape)}, and must be {wanted}")
    if x_scale is not None and tuple(x_scale.shape) != (x.shape[0], across):
        raise ValueError(f"grouped_matmul: x_scale is {tuple(x_scale.shape)}, and must be {(x.shape[0], across)}")


def has_native_fp8(device: torch.device) -> bool:
    """Whether Triton converts float8_e4m3fn there: on NVIDIA from 8.9 on. Elsewhere codes are read as bits."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


_TYPES = {"*bf16": torch.bfloat16, "*fp16": torch.float16, "*fp32": torch.float32}
_STRIDES = ("x_stride", "expert_stride", "column_stride", "scale_expert", "scale_column", "x_scale_stride")


def AHEAD(architecture: str) -> list[dict[str, object]]:
    """256 experts with 8, 48 and 256 rows each; plain, FP8 weights, and FP8 weights and rows, by blocks of 128."""
    native = architecture.startswith("sm_") and int(architecture[3:]) >= 89
    shared = _SHARED.get(architecture, _LEAST_SHARED)
    codes = "*fp8e4nv" if native else "*u8"
    entries = []
    for type, dtype in _TYPES.items():
        for fp8, fp8_rows in ((False, False), (True, False), (True, True)):
            data = {"x": codes if fp8_rows else type, "weight": codes if fp8 else type, "ends": "*i32", "out": type}
            data |= {"x_scale": "*fp32" if fp8_rows else "*i32", "weight_scale": "*fp32" if fp8 else "*i32"}
            numbers = ("rows", "columns", "inner", "experts", *_STRIDES)
            for mean in (8, 48, 256):
                config = configuration(mean * 256, 256, 7168, dtype, 128 if fp8 else 0, shared)
                config |= {"BLOCK_ROWS": 128, "BLOCK_COLUMNS": 128, "FP8": fp8, "FP8_ROWS": fp8_rows}
                kind = "-fp8-rows" if fp8_rows else "-fp8" if fp8 else ""
                entries.append(
                    {
                        "name": f"{type[1:]}{kind}-{mean}",
                        "function": _tile,
                        "signature": data | dict.fromkeys(numbers, "i32"),
                        "config": config | {"NATIVE": native or not fp8},
                        "divisible": (*data, "columns", "inner", "x_stride", "expert_stride", "column_stride"),
                    }
                )
    return entries
