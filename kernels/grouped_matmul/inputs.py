"""Experts of real models, and shapes that break kernels."""

from __future__ import annotations

from typing import Any

import torch


def _case(experts: int, rows: int, columns: int, inner: int, **more: Any) -> dict[str, Any]:
    sizes = {"experts": experts, "rows": rows, "columns": columns, "inner": inner}
    return {**sizes, "fp8": False, "used": min(experts, rows), **more}


CASES: list[dict[str, Any]] = [
    _case(1, 1, 1, 1),
    _case(3, 7, 5, 7),
    _case(4, 33, 33, 129),
    _case(5, 40, 17, 1023, note="rows of no whole vector"),
    _case(8, 16, 96, 256, even=True, note="two rows for each"),
    _case(4, 5, 64, 128, spare=3, note="rows of no expert"),
    _case(3, 9, 130, 257, fp8=True),
    _case(4, 40, 256, 512, fp8=True, note="FP8 weights"),
    _case(4, 40, 256, 512, fp8=True, fp8_rows=True, note="FP8 weights and rows"),
    _case(2, 3, 40, 200, fp8=True, fp8_rows=True, block_rows=16, block_columns=32),
    _case(2, 60, 256, 2048, note="Qwen3-30B-A3B, down"),
    _case(1, 100, 24, 2700, fp8=True, fp8_rows=True, note="an inner dimension that caches do not hold at once"),
    _case(4, 0, 64, 128),
    _case(128, 12, 4096, 4200, huge=True, note="more than 2^31 numbers in the weights"),
    _case(16, 16, 2048, 4096, bench=True, even=True, note="decode, one row for each"),
    _case(16, 64, 2048, 4096, bench=True, even=True, note="decode, four rows for each"),
    _case(16, 64, 2048, 4096, bench=True, even=True, fp8=True),
    _case(8, 1024, 1024, 2048, bench=True, even=True, note="prefill"),
    _case(8, 1024, 1024, 2048, bench=True, even=True, fp8=True, note="prefill, FP8 weights"),
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(x, weight, ends, x_scale, weight_scale, block_rows, block_columns, dtype); experts of any number of rows."""
    experts, rows, columns, inner = (case[name] for name in ("experts", "rows", "columns", "inner"))
    block_rows, block_columns = case.get("block_rows", 128), case.get("block_columns", 128)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    def scales(*shape: int) -> torch.Tensor:
        return (0.5 + torch.rand(*shape, generator=generator, device=device, dtype=torch.float32)) / inner**0.5

    owned = rows - case.get("spare", 0)
    if case.get("even"):
        ends = (torch.arange(1, experts + 1, device=device) * owned // experts).to(torch.int32)
    else:
        cuts = torch.randint(0, owned + 1, (experts - 1,), generator=generator, device=device).sort().values
        ends = torch.cat((cuts, torch.tensor([owned], device=device))).to(torch.int32)
    across = -(-inner // block_columns)
    fp8 = torch.float8_e4m3fn
    x, x_scale = normal(rows, inner).to(fp8 if case.get("fp8_rows") else dtype), None
    if case.get("fp8_rows"):
        x_scale = scales(rows, across)
    if not case["fp8"]:
        weight = torch.empty(experts, columns, inner, device=device, dtype=dtype)
        for expert in range(experts):
            weight[expert] = (normal(columns, inner) / inner**0.5).to(dtype)
        return x, weight, ends, None, None, block_rows, block_columns, dtype
    weight = normal(experts, columns, inner).to(fp8)
    weight_scale = scales(experts, -(-columns // block_rows), across)
    return x, weight, ends, x_scale, weight_scale, block_rows, block_columns, dtype


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Rows of a few experts, of which the last one's weight lies beyond 2^31 elements."""
    at = torch.tensor([0, 1, case["experts"] - 2, case["experts"] - 1])
    small = make({**case, "experts": len(at), "even": True}, dtype, generator, str(generator.device))
    x, weight, ends, *rest = small
    counts = torch.zeros(case["experts"], device=ends.device, dtype=ends.dtype)
    counts[at.to(ends.device)] = ends.diff(prepend=ends.new_zeros(1))
    spread = counts.cumsum(0).to(ends.dtype)
    return (x, placed(weight, case["experts"], at), spread, *rest), small, lambda outputs: outputs
