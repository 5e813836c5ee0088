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


def test_ends_that_fall_are_an_error() -> None:
    args = fresh(kernel("grouped_matmul"), 4)
    args[2][3] = 1
    with pytest.raises(RuntimeError, match="ends must rise to at most 16 rows, got 1 after 6 at expert 3"):
        torch.ops.day0.grouped_matmul(*args)
