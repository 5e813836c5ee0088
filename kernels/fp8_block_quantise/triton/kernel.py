"""FP8 quantisation by blocks in Triton: a block stays in registers between its largest magnitude and its codes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

#: The largest float8_e4m3fn, and what a block of zeros is taken to hold, so that its scale is not zero.
LARGEST, SMALLEST = tl.constexpr(448.0), tl.constexpr(1e-10)
#: Numbers of the largest block that is held in registers; a larger one is read twice, in pieces.
_HELD = 32768
#: Numbers of a tile of blocks of one row each: 32 for each of 128 threads, 16 where there are few.
_TILE = 4096


@triton.jit
def _codes(x, NATIVE: tl.constexpr):
    """The nearest float8_e4m3fn of float32 that is at most 448 but for rounding, ties to even; NaN stays.

    Not native: its bits, as uint8.
    """
    if NATIVE:
        return x.to(tl.float8e4nv)
    else:  # (Triton needs the branch: the types differ)
        bits = x.to(tl.uint32, bitcast=True)
        size = bits & 0x7FFFFFFF
        # Below 2^-6 codes are 2^-9 apart, as floats are at 2^14; above, 20 bits are rounded off, the exponent shifted.
        small = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
        code = tl.where(size > 0x7F800000, 0x7F, tl.where(size < 0x3C800000, small, normal))
        return (code | (bits >> 24 & 0x80)).to(tl.uint8)


@triton.jit
def _scale(bits, POWER_OF_TWO: tl.constexpr):
    """A block's scale, from the bits of its largest magnitude, which order as magnitudes do, NaN last."""
    most = bits.to(tl.float32, bitcast=True)
    scale = tl.math.div_rn(tl.where(most < SMALLEST, SMALLEST, most), LARGEST)
    if POWER_OF_TWO:
        up = scale.to(tl.uint32, bitcast=True)
        finite = up < 0x7F800000
        scale = tl.where(finite, ((up + 0x7FFFFF) & 0xFF800000).to(tl.float32, bitcast=True), scale)
    return scale


@triton.jit
def _magnitudes(x):
    return (x.to(tl.int32, bitcast=True)) & 0x7FFFFFFF


#: Numbers of blocks and the like are no reason to compile anew.
@triton.jit(do_not_specialize=["across", "blocks"])
def _rows(x, codes, scales, columns, across, blocks, stride, WIDTH: tl.constexpr, BLOCKS: tl.constexpr,
          COLUMNS: tl.constexpr, POWER_OF_TWO: tl.constexpr, NATIVE: tl.constexpr):  # fmt: skip
    """BLOCKS blocks of one row each and WIDTH columns, one after another."""
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)[:, None]
    within = tl.arange(0, COLUMNS)[None, :]
    row = (block // across).to(tl.int64)
    column = block % across * WIDTH + within
    inside = (block < blocks) & (within < WIDTH) & (column < columns)
    numbers = tl.load(x + row * stride + column, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
    scale = _scale(tl.max(_magnitudes(numbers), 1)[:, None], POWER_OF_TWO)
    tl.store(scales + block, scale, block < blocks)
    tl.store(codes + row * columns + column, _codes(numbers * tl.math.div_rn(1.0, scale), NATIVE), inside)


@triton.jit(do_not_specialize=["rows", "across"])
def _block(x, codes, scales, rows, columns, across, stride, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
           POWER_OF_TWO: tl.constexpr, NATIVE: tl.constexpr):  # fmt: skip
    """One block, which a tile holds."""
    down, along = tl.program_id(0) // across, tl.program_id(0) % across
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (row < height) & (column < width) & (down * height + row < rows) & (along * width + column < columns)
    row, column = down.to(tl.int64) * height + row, along * width + column
    numbers = tl.load(x + row * stride + column, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
    scale = _scale(tl.max(tl.max(_magnitudes(numbers), 1), 0), POWER_OF_TWO)
    tl.store(scales + tl.program_id(0), scale)
    tl.store(codes + row * columns + column, _codes(numbers * tl.math.div_rn(1.0, scale), NATIVE), inside)


@triton.jit(do_not_specialize=["rows", "across"])
def _large_block(x, codes, scales, rows, columns, across, stride, height, width, COLUMNS: tl.constexpr,
                 POWER_OF_TWO: tl.constexpr, NATIVE: tl.constexpr):  # fmt: skip
    """One block of any size, in pieces of a row."""
    top = (tl.program_id(0) // across).to(tl.int64) * height
    left = tl.program_id(0) % across * width
    bottom, right = tl.minimum(top + height, rows), tl.minimum(left + width, columns)
    most = tl.zeros([COLUMNS], tl.int32)
    for row in range(top, bottom):
        for begin in range(left, right, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)
            numbers = tl.load(x + row * stride + column, column < right, 0.0).to(tl.float32)
            most = tl.maximum(most, _magnitudes(numbers))
    scale = _scale(tl.max(most, 0), POWER_OF_TWO)
    tl.store(scales + tl.program_id(0), scale)
    inverse = tl.math.div_rn(1.0, scale)
    for row in range(top, bottom):
        for begin in range(left, right, COLUMNS):
            column = begin + tl.arange(0, COLUMNS)
            numbers = tl.load(x + row * stride + column, column < right, 0.0).to(tl.float32)
            tl.store(codes + row * columns + column, _codes(numbers * inverse, NATIVE), column < right)


def run(x: torch.Tensor, block_rows: int, block_columns: int, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, as x, (rows, columns), in float8_e4m3fn, and scales, float32, one for each block."""
    if block_rows < 1 or block_columns < 1:
        raise ValueError(f"fp8_block_quantise: a block must have rows and columns, got {block_rows} by {block_columns}")
    rows, columns = x.shape
    down, across = -(-rows // block_rows), -(-columns // block_columns)
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(down, across, dtype=torch.float32, device=x.device)
    if not x.numel():
        return codes, scales
    x = x if x.stride(1) == 1 else x.contiguous()
    height, width = min(block_rows, rows), min(block_columns, columns)
    native = has_native_fp8(x.device)
    given = codes if native else codes.view(torch.uint8)
    tile, options = configuration(height, width, down * across)
    options |= {"POWER_OF_TWO": power_of_two, "NATIVE": native}
    with torch.accelerator.device_index(x.device.index):
        if tile == "rows":
            grid = (triton.cdiv(down * across, options["BLOCKS"]),)
            _rows[grid](x, given, scales, columns, across, down * across, x.stride(0), WIDTH=block_columns, **options)
        else:
            kernel = _block if tile == "block" else _large_block
            sizes = (rows, columns, across, x.stride(0), block_rows, block_columns)
            kernel[(down * across,)](x, given, scales, *sizes, **options)
    return codes, scales


def configuration(height: int, width: int, blocks: int) -> tuple[str, dict[str, int | bool]]:
    """Which way blocks are read, and the sizes of its tiles."""
    columns = triton.next_power_of_2(width)
    held = triton.next_power_of_2(height) * columns
    if height == 1 and columns <= _TILE:
        tile = _TILE if blocks * columns >= 1 << 21 else _TILE // 4
        return "rows", {"COLUMNS": columns, "BLOCKS": max(1, tile // columns), "num_warps": max(1, tile // 1024)}
    if held <= _HELD:
        warps = min(16, max(1, held // 1024))
        return "block", {"ROWS": triton.next_power_of_2(height), "COLUMNS": columns, "num_warps": warps}
    return "large", {"COLUMNS": min(columns, 2048), "num_warps": 8}


def has_native_fp8(device: torch.device) -> bool:
    """Whether Triton converts to float8_e4m3fn there: on NVIDIA from 8.9 on. Elsewhere codes are made of bits."""
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


_TYPES = ("*bf16", "*fp16", "*fp32")


def _is_native(architecture: str) -> bool:
    return architecture.startswith("sm_") and int(architecture[3:]) >= 89


def AHEAD(architecture: str) -> list[dict[str, object]]:
    """Activations by groups of 128, few and many, and weights by blocks of 128 by 128."""
    native = _is_native(architecture)
    entries = []
    for type in _TYPES:
        data = {"x": type, "codes": "*fp8e4nv" if native else "*u8", "scales": "*fp32"}
        for power_of_two in (False, True):
            for rows, height in ((16, 1), (4096, 1), (4096, 128)):
                tile, config = configuration(height, 128, -(-rows // height) * 56)
                numbers = ("columns", "across", "blocks", "stride")
                if tile == "rows":
                    config["WIDTH"] = 128
                else:
                    numbers = ("rows", "columns", "across", "stride", "height", "width")
                entries.append(
                    {
                        "name": f"{tile}-{type[1:]}{'-ue8m0' if power_of_two else ''}-{rows}",
                        "function": _rows if tile == "rows" else _block,
                        "signature": data | dict.fromkeys(numbers, "i32"),
                        "config": config | {"POWER_OF_TWO": power_of_two, "NATIVE": native},
                        "divisible": (*data, *(n for n in numbers if n not in ("across", "blocks", "rows"))),
                    }
                )
    return entries
