"""Writes to a paged cache in C++."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu import as_bytes, called, check_all_cases, check_layouts, fresh, kernel

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


@pytest.mark.parametrize("fp8", [False, True])
def test_a_write_larger_than_the_caches_is_the_same(fp8: bool) -> None:
    """It goes past them where the last-level cache has up to 32 MiB; elsewhere as any other."""
    definition = kernel("kv_cache_write")
    case = {"tokens": 9000, "heads": 8, "key_size": 128, "value_size": 128, "fp8": fp8, "block_size": 16}
    args = definition.make(case, torch.bfloat16, torch.Generator().manual_seed(5), "cpu")
    for found, expected in zip(called(definition, args), definition.reference(*args), strict=True):
        assert torch.equal(as_bytes(found), as_bytes(expected))
