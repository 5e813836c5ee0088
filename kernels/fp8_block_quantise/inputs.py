"""Shapes that are quantised in real models, and those that break kernels."""

from __future__ import annotations

from typing import Any

import torch


def _case(rows: int, columns: int, block_rows: int, power_of_two: bool = False, **more: Any) -> dict[str, Any]:
    block = {"block_rows": block_rows, "block_columns": more.pop("block_columns", 128)}
    return {"rows": rows, "columns": columns, **block, "power_of_two": power_of_two, **more}


CASES: list[dict[str, Any]] = [
    _case(1, 1, 1),
    _case(3, 7, 1),
    _case(33, 129, 1),
    _case(5, 1023, 1, True),
    _case(130, 257, 128),
    _case(7, 100, 2, True, block_columns=48),
    _case(17, 7168, 1, note="DeepSeek-V3, activations"),
    _case(4, 2048, 1, True, note="DeepSeek-V3.1, activations"),
    _case(576, 1536, 128, note="rows that end within a block"),
    _case(6, 512, 1, zeros=True, note="rows of zeros"),
    _case(0, 7168, 1),
    _case(300000, 7168, 1, huge=True, note="more than 2^31 numbers"),
    _case(16, 7168, 1, bench=True, note="DeepSeek-V3, decode"),
    _case(4096, 7168, 1, bench=True, note="DeepSeek-V3, prefill"),
    _case(32768, 7168, 1, bench=True),
    _case(7168, 2048, 128, bench=True, note="DeepSeek-V3, an expert's weight"),
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(x, block_rows, block_columns, power_of_two); rows of sizes from 2^-6 to 2^6."""
    rows = case["rows"]
    x = torch.randn(rows, case["columns"], generator=generator, device=device, dtype=torch.float32)
    x *= torch.exp2(torch.randint(-6, 7, (rows, 1), generator=generator, device=device).float())
    if case.get("zeros"):
        x[::2] = 0
    return x.to(dtype), case["block_rows"], case["block_columns"], case["power_of_two"]


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Rows among zeros, of which the last lie beyond 2^31 elements of arguments and results."""
    at = torch.tensor([0, 1, case["rows"] // 2, case["rows"] - 2, case["rows"] - 1])
    small = make({**case, "rows": len(at)}, dtype, generator, str(generator.device))
    args = (placed(small[0], case["rows"], at), *small[1:])
    return args, small, lambda outputs: tuple(output[at] for output in outputs)
