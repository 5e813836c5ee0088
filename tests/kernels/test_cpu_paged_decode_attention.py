"""Paged decode attention in C++."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.cpu import INSTRUCTION_SETS, check_all_cases, check_layouts, fresh, instruction_set, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_case_is_as_near_to_float64_as_the_reference() -> None:
    check_all_cases("paged_decode_attention")


def test_any_layout_gives_the_same() -> None:
    check_layouts("paged_decode_attention")


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_what_lies_past_a_sequence_is_not_read(isa: str) -> None:
    """NaNs in slots past the length, and block numbers past it that are none."""
    args = fresh(kernel("paged_decode_attention"), 4)
    query, keys, values, table, lengths = args[:5]
    lengths[:] = torch.tensor([100, 1, 600, 513, 512])[: len(lengths)].clamp(max=table.shape[1] * keys.shape[1] - 1)
    expected = torch.ops.day0.paged_decode_attention(*args)
    for sequence, length in enumerate(lengths.tolist()):
        block, row = divmod(length, keys.shape[1])
        keys[table[sequence, block], row:] = math.nan
        values[table[sequence, block], row:] = math.nan
        table[sequence, block + 1 :] = -1
    with instruction_set(isa):
        found = torch.ops.day0.paged_decode_attention(query, *args[1:])
    assert torch.allclose(found, expected, atol=1e-6)


def test_threads_do_not_change_the_result() -> None:
    args = fresh(kernel("paged_decode_attention"), 9, torch.bfloat16)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(torch.ops.day0.paged_decode_attention(*args))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_block_that_is_not_in_the_cache_is_an_error() -> None:
    args = fresh(kernel("paged_decode_attention"), 4)
    args[3][0, 0] = 10**6
    with pytest.raises(RuntimeError, match="block 1000000 of sequence 0 is not in the cache"):
        torch.ops.day0.paged_decode_attention(*args)
