"""Grouped expert matmul in C++."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.cpu import INSTRUCTION_SETS, check_all_cases, check_layouts, fresh, instruction_set, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_case_is_as_near_to_float64_as_the_reference() -> None:
    check_all_cases("grouped_matmul")


def test_any_layout_gives_the_same() -> None:
    check_layouts("grouped_matmul")


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("rows", [1, 40])
def test_a_nan_stays_in_its_row_and_every_fp8_code_is_read(isa: str, rows: int) -> None:
    kernel("grouped_matmul")
    codes = torch.arange(256, dtype=torch.uint8)
    codes[codes % 128 == 127] = 0
    weight = codes.view(torch.float8_e4m3fn).reshape(1, 1, 256)
    x = torch.zeros(rows, 256, dtype=torch.bfloat16)
    x[0] = 1
    ends = torch.tensor([rows], dtype=torch.int32)
    with instruction_set(isa):
        for at in range(256):
            x[0] = 0
            x[0, at] = 2
            out = torch.ops.day0.grouped_matmul(x, weight, ends, None, torch.ones(1, 1, 2), 128, 128, torch.bfloat16)
            assert out[0, 0] == 2 * weight[0, 0, at].float()
        x[0, 0] = math.nan
        out = torch.ops.day0.grouped_matmul(x, weight, ends, None, torch.ones(1, 1, 2), 128, 128, torch.bfloat16)
    assert out.isnan().flatten().tolist() == [True] + [False] * (rows - 1)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 40])
def test_the_infinite_scale_of_a_short_block_gives_infinity(isa: str, dtype: torch.dtype, rows: int) -> None:
    kernel("grouped_matmul")
    x = torch.ones(rows, 257, dtype=dtype)
    weight = torch.ones(1, 1, 257).to(torch.float8_e4m3fn)
    scale = torch.tensor([[[1.0, 1.0, -math.inf]]])
    ends = torch.tensor([rows], dtype=torch.int32)
    with instruction_set(isa):
        out = torch.ops.day0.grouped_matmul(x, weight, ends, None, scale, 128, 128, dtype)
    assert (out == -math.inf).all()


@pytest.mark.parametrize(
    ("rows", "columns", "inner"),
    [
        ([17, 0, 16, 300, 0], 100, 2049),  # experts in one block and in two, with and without packing, an odd dimension
        ([0, 0, 33], 1, 6000),  # several ranges of the inner dimension
        ([81], 49, 97),  # panels of two and three vectors
        ([257, 5], 25, 31),  # fewer numbers than a vector
        ([48, 70, 128], 48, 128),
    ],
)
@pytest.mark.parametrize("fp8", ["", "weight", "weight and rows", "odd blocks"])
def test_many_rows_are_as_near_to_float64_as_rounding_allows(
    rows: list[int], columns: int, inner: int, fp8: str
) -> None:
    definition = kernel("grouped_matmul")
    case = {"experts": len(rows), "rows": sum(rows) + 2, "columns": columns, "inner": inner, "fp8": bool(fp8)}
    if fp8 == "odd blocks":
        case |= {"block_rows": 3, "block_columns": 37}
    case |= {"fp8_rows": fp8 == "weight and rows"}
    args = list(definition.make(case, torch.bfloat16, torch.Generator().manual_seed(sum(rows)), "cpu"))
    args[2] = torch.tensor(rows).cumsum(0).to(torch.int32)
    wide = [arg.double() if isinstance(arg, torch.Tensor) and arg.is_floating_point() else arg for arg in args]
    (truth,) = definition.reference(*wide)
    out = torch.ops.day0.grouped_matmul(*args)
    torch.testing.assert_close(out.double(), truth, rtol=2**-8 * 1.01, atol=1e-5)
    assert (out[-2:] == 0).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_uneven_experts_without_a_difference(threads: int) -> None:
    definition = kernel("grouped_matmul")
    case = {"experts": 4, "rows": 350, "columns": 300, "inner": 512, "fp8": False}
    args = list(definition.make(case, torch.bfloat16, torch.Generator().manual_seed(0), "cpu"))
    args[2] = torch.tensor([3, 303, 303, 350], dtype=torch.int32)
    usual = torch.get_num_threads()
    expected = torch.ops.day0.grouped_matmul(*args)
    try:
        torch.set_num_threads(threads)
        out = torch.full_like(expected, math.nan)
        torch.ops.day0.grouped_matmul.out(*args, out0=out)
    finally:
        torch.set_num_threads(usual)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("rows_scaled", [False, True])
def test_the_nan_or_infinite_scale_of_a_block_stays_in_what_it_scales(rows_scaled: bool) -> None:
    kernel("grouped_matmul")
    x = torch.ones(40, 512).to(torch.float8_e4m3fn if rows_scaled else torch.bfloat16)
    weight = torch.ones(1, 60, 512).to(torch.float8_e4m3fn)
    scale = torch.ones(1, 2, 4)
    scale[0, 1, 2] = math.inf  # columns from 30 on
    x_scale = torch.ones(40, 4) if rows_scaled else None
    if x_scale is not None:
        x_scale[7, 1] = math.nan
    out = torch.ops.day0.grouped_matmul(
        x, weight, torch.tensor([40], dtype=torch.int32), x_scale, scale, 30, 128, torch.bfloat16
    )
    expected = torch.full((40, 60), 512.0)
    expected[:, 30:] = math.inf
    if rows_scaled:
        expected[7] = math.nan
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0, equal_nan=True)


def test_ends_that_fall_are_an_error() -> None:
    args = fresh(kernel("grouped_matmul"), 4)
    args[2][3] = 1
    with pytest.raises(RuntimeError, match="ends must rise to at most 16 rows, got 1 after 6 at expert 3"):
        torch.ops.day0.grouped_matmul(*args)
