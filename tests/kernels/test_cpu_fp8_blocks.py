"""FP8 quantisation and dequantisation by blocks in C++."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.cpu import INSTRUCTION_SETS, check_all_cases, check_layouts, instruction_set, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]
NAMES = ["fp8_block_quantise", "fp8_block_dequantise"]


@pytest.mark.parametrize("name", NAMES)
def test_every_case_is_as_near_to_float64_as_the_reference(name: str) -> None:
    check_all_cases(name)


@pytest.mark.parametrize("name", NAMES)
def test_any_layout_gives_the_same(name: str) -> None:
    check_layouts(name)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_code_is_read_as_torch_reads_it(isa: str, dtype: torch.dtype) -> None:
    kernel("fp8_block_dequantise")
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(2, 128)
    with instruction_set(isa):
        found = torch.ops.day0.fp8_block_dequantise(codes, torch.ones(1, 1), 128, 128, dtype)
    assert torch.equal(found.nan_to_num(999), codes.to(dtype).nan_to_num(999))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_numbers_are_rounded_as_torch_rounds_them(isa: str) -> None:
    """All of float16 within ±448, ties among them; the first of each block is 448, so that its scale is 1."""
    kernel("fp8_block_quantise")
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    numbers = numbers[numbers.abs() <= 448]
    numbers = numbers[: len(numbers) // 127 * 127].reshape(-1, 127)
    blocks = torch.cat((torch.full((len(numbers), 1), 448.0), numbers), dim=1)
    with instruction_set(isa):
        codes, scales = torch.ops.day0.fp8_block_quantise(blocks, 1, 128, False)
    assert (scales == 1).all()
    assert torch.equal(codes.view(torch.uint8), blocks.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_a_block_with_a_nan_is_all_nan(isa: str) -> None:
    kernel("fp8_block_quantise")
    x = torch.ones(2, 256)
    x[0, 200] = math.nan
    with instruction_set(isa):
        codes, scales = torch.ops.day0.fp8_block_quantise(x, 1, 128, True)
    assert scales.isnan().tolist() == [[False, True], [False, False]]
    assert codes.float().isnan()[0, 128:].all()
    assert not codes.float().isnan()[:, :128].any()


def test_scales_of_another_shape_are_an_error() -> None:
    kernel("fp8_block_dequantise")
    codes = torch.zeros(200, 300).to(torch.float8_e4m3fn)
    with pytest.raises(RuntimeError, match=r"scales must have shape \(2, 3\), got \(3, 2\)"):
        torch.ops.day0.fp8_block_dequantise(codes, torch.ones(3, 2), 128, 128, torch.float32)
