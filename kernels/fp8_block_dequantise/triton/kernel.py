"""FP8 dequantisation by blocks in Triton: one product in float32, rounded once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Codes of a tile: 32 for each of 128 threads, two loads of 16 bytes.
_TILE = 4096


@triton.jit
def _numbers(codes, NATIVE: tl.constexpr):
    """Float8_e4m3fn as float32. Not native: of their bits, as uint8, whose exponent is put right by a product."""
    if NATIVE:
        return codes.to(tl.float32)
    else:
        wide = codes.to(tl.uint32)
        size = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
        size = tl.where((wide & 0x7F) == 0x7F, float("nan"), size)
        return tl.where(wide >= 0x80, -size, size)


#: Numbers of rows and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["rows", "across", "segments", "tiles", "scale_matrix", "scale_row"])
def _segments(codes, scales, out, rows, columns, across, segments, tiles, matrix_stride, row_stride, scale_matrix,
              scale_row, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
              COLUMNS: tl.constexpr, NATIVE: tl.constexpr):  # fmt: skip
    """SEGMENTS segments of rows, one after another in a matrix, each of SEGMENT columns, or fewer at a row's end."""
    matrix = (tl.program_id(0) // tiles).to(tl.int64)
    segment = tl.program_id(0) % tiles * SEGMENTS + tl.arange(0, SEGMENTS)[:, None]
    within = tl.arange(0, COLUMNS)[None, :]
    row, part = segment // across, segment % across
    column = part * SEGMENT + within
    inside = (segment < segments) & (within < SEGMENT) & (column < columns)
    scaled_by = scales + matrix * scale_matrix + (row // HEIGHT).to(tl.int64) * scale_row
    if SEGMENT == WIDTH:
        scale = tl.load(scaled_by + part, segment < segments, 0.0).to(tl.float32)
    else:
        scale = tl.load(scaled_by + column // WIDTH, inside, 0.0).to(tl.float32)
    row = row.to(tl.int64)
    source = codes + matrix * matrix_stride + row * row_stride + column
    found = tl.load(source, inside, 0.0, eviction_policy="evict_first")
    result = (_numbers(found, NATIVE) * scale).to(out.dtype.element_ty)
    tl.store(out + (matrix * rows + row) * columns + column, result, inside)


def run(
    codes: torch.Tensor, scales: torch.Tensor, block_rows: int, block_columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """codes (…, rows, columns), float8_e4m3fn, times scales (…, blocks down, blocks across), as `dtype`."""
    rows, columns = codes.shape[-2:]
    if block_rows < 1 or block_columns < 1:
        raise ValueError(
            f"fp8_block_dequantise: a block must have rows and columns, got {block_rows} by {block_columns}"
        )
    wanted = (*codes.shape[:-2], -(-rows // block_rows), -(-columns // block_columns))
    if codes.dtype != torch.float8_e4m3fn or tuple(scales.shape) != wanted:
        raise ValueError(
            f"fp8_block_dequantise: codes {tuple(codes.shape)} {codes.dtype} have scales of {wanted}, and they are "
            f"{tuple(scales.shape)}"
        )
    out = torch.empty(codes.shape, dtype=dtype, device=codes.device)
    if not codes.numel():
        return out
    codes, scales = (_stack(tensor) for tensor in (codes, scales))
    native = has_native_fp8(codes.device)
    segment, options = configuration(columns, block_columns, codes.numel())
    across = triton.cdiv(columns, segment)
    tiles = triton.cdiv(rows * across, options["SEGMENTS"])
    strides = (codes.stride(0), codes.stride(1), scales.stride(0), scales.stride(1))
    options |= {"HEIGHT": block_rows, "WIDTH": block_columns, "SEGMENT": segment, "NATIVE": native}
    given = codes if native else codes.view(torch.uint8)
    with torch.accelerator.device_index(codes.device.index):
        _segments[(codes.shape[0] * tiles,)](
            given, scales, out, rows, columns, across, rows * across, tiles, *strides, **options
        )
    return out


def configuration(columns: int, block_columns: int, count: int) -> tuple[int, dict[str, int | bool]]:
    """Columns of a segment, which are a block's where a tile holds them; and how many segments a tile has."""
    segment = block_columns if block_columns <= _TILE else 1024
    width = triton.next_power_of_2(min(columns, segment))
    tile = _TILE if count >= 1 << 22 else _TILE // 4
    return segment, {"COLUMNS": width, "SEGMENTS": max(1, tile // width), "num_warps": tile // 1024}


def has_native_fp8(device: torch.device) -> bool:
    """Whether Triton converts float8_e4m3fn there: on NVIDIA from 8.9 on. Elsewhere codes are read as bits."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _stack(matrices: torch.Tensor) -> torch.Tensor:
    """As (matrices, rows, columns), whose rows are side by side in memory."""
    stack = matrices.reshape(-1, *matrices.shape[-2:])
    return stack if stack.stride(2) == 1 else stack.contiguous()


_TYPES = ("*bf16", "*fp16", "*fp32")


def _is_native(architecture: str) -> bool:
    return architecture.startswith("sm_") and int(architecture[3:]) >= 89


def AHEAD(architecture: str) -> list[dict[str, object]]:
    """Weights by blocks of 128 by 128 and activations by groups of 128, small and large."""
    native = _is_native(architecture)
    entries = []
    for type in _TYPES:
        data = {"codes": "*fp8e4nv" if native else "*u8", "scales": "*fp32", "out": type}
        numbers = ("rows", "columns", "across", "segments", "tiles", "matrix_stride", "row_stride", "scale_matrix")
        for height, count in ((128, 1 << 20), (128, 1 << 24), (1, 1 << 24)):
            segment, config = configuration(7168, 128, count)
            config |= {"HEIGHT": height, "WIDTH": 128, "SEGMENT": segment, "NATIVE": native}
            entries.append(
                {
                    "name": f"{type[1:]}-{height}-{count}",
                    "function": _segments,
                    "signature": data | dict.fromkeys((*numbers, "scale_row"), "i32"),
                    "config": config,
                    "divisible": (*data, "columns", "matrix_stride", "row_stride"),
                }
            )
    return entries
