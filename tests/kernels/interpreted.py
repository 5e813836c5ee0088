"""Checks of the Triton kernels under Triton's interpreter: `python -m tests.kernels.interpreted` prints what failed.

Triton reads TRITON_INTERPRET when it is imported, so these run in a process of their own; one for all, because it
takes seconds to start.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.interpreter import compute_as_devices_do
from tasks.kernels.acceptance.subject import widened
from tasks.kernels.definition import KernelDefinition, label
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.load import as_tuple
from tasks.kernels.modules import load_module
from tests.kernels.cpu import compare_form, fresh

#: Bytes that a case may move in float32: interpreting takes about a second for each million.
MOST = 1 << 16
#: Attention and experts take more to have FP8 in it; of the router's, each token takes long.
OF = {"paged_decode_attention": 1 << 18, "grouped_matmul": 1 << 18, "router_topk": 1 << 13}
#: Cases in FP8, by their place.
NATIVE = {
    "fp8_block_quantise": (1, 2),
    "fp8_block_dequantise": (1, 4),
    "kv_cache_write": (2, 3),
    "grouped_matmul": (9,),
    "paged_decode_attention": (6,),
}


@cache
def kernel(name: str) -> tuple[KernelDefinition, Any]:
    """The definition, and the Triton module."""
    definition = find_kernel(name)
    return definition, load_module(definition.folder / "triton" / "kernel.py")


def outputs_of(name: str, args: list[Any]) -> tuple[torch.Tensor, ...]:
    """The outputs, or, of an operator that writes to arguments, what copies of those hold afterwards."""
    definition, module = kernel(name)
    if not definition.schema.mutates:
        return as_tuple(module.run(*args))
    given = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    module.run(*given)
    return tuple(arg for arg, about in zip(given, definition.arguments, strict=True) if about.mutated)


def small_cases(name: str, dtype: str) -> None:
    """As near to float64 as kernel.yaml allows."""
    definition, _ = kernel(name)
    judge, done = Judge(dtype, definition.file.tolerance[dtype]), 0
    for index, case in enumerate(definition.cases):
        if case.get("bench") or case.get("huge") or definition.bytes(case, 4) > OF.get(name, MOST):
            continue
        args = fresh(definition, index, getattr(torch, dtype))
        wide = tuple(widened(arg) for arg in args)
        framework, truth = definition.reference(*args), definition.reference(*wide)
        compared = [compare_form(definition, wide, outputs) for outputs in (framework, truth)]
        compared[1] = tuple(t.double() if t.is_floating_point() else t for t in compared[1])
        outputs = outputs_of(name, args)
        assert [(o.shape, o.dtype) for o in outputs] == [(o.shape, o.dtype) for o in framework], label(case)
        judge.calibrate(*compared)
        judge.compare(compare_form(definition, wide, outputs), compared[0], compared[1], label(case))
        done += 1
    judge.finish()
    assert done >= 3, f"{done} cases"


def native_fp8(name: str) -> None:
    """The machine's own FP8 gives the bits that are made and read as integers where there is none."""
    definition, module = kernel(name)
    own = module.has_native_fp8
    for index in NATIVE[name]:
        args = fresh(definition, index, torch.bfloat16)
        ours = outputs_of(name, args)
        try:
            module.has_native_fp8 = lambda device: True
            native = outputs_of(name, args)
        finally:
            module.has_native_fp8 = own
        for left, right in zip(ours, native, strict=True):
            assert torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


def every_code() -> None:
    """All of bfloat16 as torch rounds it, within ±448; NaN stays."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    cache = [torch.zeros(1, 1, 1, 2**16, dtype=torch.float8_e4m3fn) for _ in range(2)]
    new, one = every.view(1, 1, -1), torch.ones(1)
    kernel("kv_cache_write")[1].run(new, new, *cache, torch.zeros(1, dtype=torch.int64), one, one)
    codes, wanted = cache[0].flatten().float(), every.float().clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(codes.isnan(), wanted.isnan())
    assert torch.equal(codes.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(codes.signbit()[~codes.isnan()], wanted.signbit()[~wanted.isnan()])


def router_extremes(value: float) -> None:
    definition, module = kernel("router_topk")
    for index in (4, 7, 9):
        args = fresh(definition, index)
        args[0][::2, 5] = value
        for got, wanted in zip(module.run(*args), definition.reference(*args), strict=True):
            assert torch.allclose(got.double(), wanted.double(), equal_nan=True)


def equal_scores() -> None:
    """The lower index is better; and what cannot be chosen is an error."""
    run = kernel("router_topk")[1].run
    assert run(torch.zeros(1, 40), None, 6, "sigmoid", 4, 2, True, 1.0)[1].tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(ValueError, match="5 experts cannot be chosen of 4"):
        run(torch.zeros(1, 8), None, 5, "sigmoid", 4, 2, True, 1.0)


def splits() -> None:
    """However many splits: the same but for the order of sums. What unseen slots hold counts for nothing."""
    definition, module = kernel("paged_decode_attention")
    args = fresh(definition, 8)
    args[1], args[2] = args[1].clone(), args[2].clone()
    args[4][-1] = 100
    unseen = int(args[3][-1, -1])
    args[1][unseen] = args[2][unseen] = math.nan
    wanted, own = definition.reference(*args)[0], module.splits_of
    for count in (1, 2, 5):
        try:
            module.splits_of = lambda rows, tokens, processors, count=count: count
            assert torch.allclose(module.run(*args), wanted, atol=1e-5), f"{count} splits"
        finally:
            module.splits_of = own


def value_scale(value: float) -> None:
    """A scale that is no number makes what the reference makes: by each element, zeros among them."""
    for name, index, at in (("paged_decode_attention", 6, 9), ("grouped_matmul", 6, 4), ("grouped_matmul", 9, 3)):
        definition, module = kernel(name)
        args = fresh(definition, index, torch.bfloat16)
        args[at].view(-1)[-1] = value
        got, wanted = module.run(*args).float(), definition.reference(*args)[0].float()
        assert torch.equal(got.isnan(), wanted.isnan()), name
        assert torch.equal(got.isinf(), wanted.isinf()), name


def large_blocks() -> None:
    """Blocks that no tile holds."""
    x = torch.randn(5, 9000, generator=torch.Generator().manual_seed(0))
    _, quantise = kernel("fp8_block_quantise")
    _, dequantise = kernel("fp8_block_dequantise")
    for rows, columns in ((5, 9000), (1, 9000), (2, 6000)):
        codes, scales = quantise.run(x, rows, columns, False)
        wanted = kernel("fp8_block_quantise")[0].reference(x, rows, columns, False)
        assert torch.equal(scales, wanted[1])
        assert (codes.float() != wanted[0].float()).float().mean() < 1e-3
        got = dequantise.run(codes, scales, rows, columns, torch.float32)
        assert torch.equal(got, kernel("fp8_block_dequantise")[0].reference(codes, scales, rows, columns, x.dtype)[0])


def long_rows() -> None:
    """Rows that no tile holds."""
    definition, module = kernel("fused_add_rms_norm")
    args = definition.make({"rows": 2, "hidden": 20000}, torch.float32, torch.Generator().manual_seed(1), "cpu")
    for got, wanted in zip(module.run(*args), definition.reference(*args), strict=True):
        assert torch.allclose(got, wanted, rtol=1e-5)


CHECKS: dict[str, Callable[[], None]] = {
    **{
        f"small cases, {name}, {dtype}": partial(small_cases, name, dtype)
        for name in kernel_names()
        for dtype in find_kernel(name).file.dtypes
    },
    **{f"native FP8, {name}": partial(native_fp8, name) for name in NATIVE},
    **{f"extremes, {value}": partial(router_extremes, value) for value in (math.nan, math.inf, -math.inf)},
    **{f"scale, {value}": partial(value_scale, value) for value in (math.nan, math.inf, -math.inf)},
    "every code": every_code,
    "equal scores": equal_scores,
    "splits": splits,
    "large blocks": large_blocks,
    "long rows": long_rows,
}


def main() -> None:
    compute_as_devices_do()
    found = {}
    for name, check in CHECKS.items():
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        try:
            check()
            found[name] = ""
        except Exception:  # whatever a kernel raises is what is asked for
            found[name] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
