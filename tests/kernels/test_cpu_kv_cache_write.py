"""Writes to a paged cache in C++."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu import check_all_cases, check_layouts, fresh, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_case_is_as_near_to_float64_as_the_reference() -> None:
    check_all_cases("kv_cache_write")


def test_any_layout_gives_the_same() -> None:
    check_layouts("kv_cache_write")


def test_a_slot_past_the_cache_is_an_error_and_nothing_is_written() -> None:
    args = fresh(kernel("kv_cache_write"), 4)
    before = args[2].clone()
    args[4][3] = 10**6
    with pytest.raises(RuntimeError, match="slot 1000000 of token 3 is past the cache"):
        torch.ops.day0.kv_cache_write(*args)
    assert torch.equal(args[2], before)


def test_an_fp8_cache_without_scales_is_an_error() -> None:
    args = fresh(kernel("kv_cache_write"), 5)
    with pytest.raises(RuntimeError, match="FP8 has a scale"):
        torch.ops.day0.kv_cache_write(*args[:5], None, None)
