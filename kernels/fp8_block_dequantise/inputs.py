"""Shapes of FP8 weights in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch


def _case(rows: int, columns: int, block_rows: int = 128, **more: Any) -> dict[str, Any]:
    matrices, block_columns = more.pop("matrices", 1), more.pop("block_columns", 128)
    sizes = {"matrices": matrices, "rows": rows, "columns": columns}
    return {**sizes, "block_rows": block_rows, "block_columns": block_columns, **more}


CASES: list[dict[str, Any]] = [
    _case(1, 1),
    _case(3, 7),
    _case(130, 257),
    _case(33, 1023, 1, note="activations"),
    _case(7, 100, 2, block_columns=48),
    _case(576, 1536, note="rows that end within a block"),
    _case(256, 512, matrices=4, note="a stack of experts"),
    _case(130, 300, matrices=3, note="matrices of a stack that end within a block"),
    _case(40, 300, nan=True, note="codes that are no number"),
    _case(0, 7168),
    _case(300032, 7168, huge=True, note="more than 2^31 numbers"),
    _case(2048, 7168, bench=True, note="DeepSeek-V3, an expert's weight"),
    _case(18432, 7168, bench=True, note="DeepSeek-V3, dense layer"),
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(codes, scales, block_rows, block_columns, dtype); one matrix has no leading dimension."""
    matrices, rows, columns = case["matrices"], case["rows"], case["columns"]
    stack = (matrices,) if matrices > 1 else ()
    codes = 100 * torch.randn(*stack, rows, columns, generator=generator, device=device, dtype=torch.float32)
    blocks = (-(-rows // case["block_rows"]), -(-columns // case["block_columns"]))
    scales = torch.rand(*stack, *blocks, generator=generator, device=device, dtype=torch.float32) / 100 + 1e-5
    if case.get("nan"):
        codes[codes > 150] = torch.nan
    codes = codes.clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes, scales, case["block_rows"], case["block_columns"], dtype


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Blocks of rows among zeros, of which the last lies beyond 2^31 elements of codes and results."""
    height, blocks = case["block_rows"], case["rows"] // case["block_rows"]
    at = torch.tensor([0, blocks // 2, blocks - 1])
    small = make({**case, "rows": len(at) * height}, dtype, generator, str(generator.device))
    codes, scales, *rest = small
    stacked = codes.view(len(at), height, case["columns"])
    args = (placed(stacked, blocks, at).view(case["rows"], case["columns"]), placed(scales, blocks, at), *rest)
    return args, small, lambda outputs: (outputs[0].view(blocks, height, -1)[at].flatten(0, 1),)
