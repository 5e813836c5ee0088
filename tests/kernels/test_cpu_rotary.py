"""Rotary embedding in C++."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu import check_all_cases, check_layouts, fresh, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_case_is_as_near_to_float64_as_the_reference() -> None:
    check_all_cases("rotary")


def test_any_layout_gives_the_same() -> None:
    check_layouts("rotary")


def test_an_output_may_be_its_input() -> None:
    positions, query, key, cos_sin, interleaved = fresh(kernel("rotary"), 3)
    expected = torch.ops.day0.rotary(positions, query, key, cos_sin, interleaved)
    torch.ops.day0.rotary.out(positions, query, key, cos_sin, interleaved, out0=query, out1=key)
    assert torch.equal(query, expected[0])
    assert torch.equal(key, expected[1])


def test_a_position_past_the_table_is_an_error() -> None:
    positions, query, key, cos_sin, interleaved = fresh(kernel("rotary"), 3)
    positions[-1] = len(cos_sin)
    with pytest.raises(RuntimeError, match=r"position 2048 of token 16 is not in the 2048 rows"):
        torch.ops.day0.rotary(positions, query, key, cos_sin, interleaved)


def test_a_key_of_another_dtype_is_an_error() -> None:
    positions, query, key, cos_sin, interleaved = fresh(kernel("rotary"), 3)
    with pytest.raises(RuntimeError, match="key must be Float, got Double"):
        torch.ops.day0.rotary(positions, query, key.double(), cos_sin, interleaved)
