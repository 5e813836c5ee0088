"""Cost formulas against counts by hand; an operator without a formula has unknown cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.operators.costs import UNKNOWN, Cost, Operand, attention, cost


def tensor(*shape: int, itemsize: int = 2, floating: bool = True, expanded: int = 1) -> Operand:
    return Operand(shape, itemsize, floating, math.prod(shape) // expanded)


def test_matrix_products() -> None:
    a, b = tensor(3, 5), tensor(5, 7)
    assert cost("aten::mm", [a, b], [tensor(3, 7)]) == Cost(2 * 3 * 5 * 7, 2 * (15 + 35 + 21))
    assert cost("aten::addmm", [tensor(7), a, b], [tensor(3, 7)]).flops == 2 * 3 * 5 * 7 + 3 * 7
    batch = [tensor(4, 3, 5), tensor(4, 5, 7)]
    assert cost("aten::bmm", batch, [tensor(4, 3, 7)]).flops == 4 * 2 * 3 * 5 * 7
    experts = [tensor(512, 64), tensor(8, 64, 32)]
    assert cost("aten::_grouped_mm", experts, [tensor(512, 32)]).flops == 2 * 512 * 64 * 32


@given(s=st.integers(1, 12), t=st.integers(1, 12), d_qk=st.integers(1, 8), d_v=st.integers(1, 8), causal=st.booleans())
def test_attention_counts_each_pair_that_is_not_masked(s: int, t: int, d_qk: int, d_v: int, causal: bool) -> None:
    flops = attention(tensor(2, 6, s, d_qk), tensor(2, 3, t, d_qk), tensor(2, 3, t, d_v), causal)
    pairs = sum(1 for q in range(s) for k in range(t) if not causal or k <= q)
    assert flops == 2 * 6 * pairs * 2 * (d_qk + d_v)


def test_elementwise_and_reductions() -> None:
    assert cost("aten::mul.Tensor", [tensor(4, 8), tensor(8)], [tensor(4, 8)]) == Cost(32, 2 * (32 + 8 + 32))
    assert cost("aten::mul_.Tensor", [tensor(4, 8), tensor(8)], [tensor(4, 8)]).flops == 32
    integers = tensor(4, itemsize=8, floating=False)
    assert cost("aten::add.Tensor", [integers, integers], [integers]) == Cost(0, 96)
    assert cost("aten::mean.dim", [tensor(4, 8)], [tensor(4, 1)]).flops == 32


def test_bytes_are_what_moves() -> None:
    expanded = tensor(4, 8, expanded=4)
    assert cost("aten::add.Tensor", [expanded, tensor(4, 8)], [tensor(4, 8)]).bytes == 2 * (8 + 32 + 32)
    table, indices = tensor(50_000, 64), tensor(3, itemsize=8, floating=False)
    assert cost("aten::embedding", [table, indices], [tensor(3, 64)]) == Cost(0, 3 * 8 + 2 * 2 * 3 * 64)
    assert cost("aten::view", [table], [table], is_view=True) == Cost(0, 0)
    assert cost("aten::copy_", [tensor(4), tensor(4)], [tensor(4)]) == Cost(0, 2 * 8)


def test_what_has_no_result_and_what_sums_rows() -> None:
    flag = tensor(1, itemsize=1, floating=False)
    assert cost("aten::_assert_async.msg", [flag], []) == Cost(0, 1)
    # Six indices in two bags, of rows of 64: each row is read and added.
    indices, offsets = tensor(6, itemsize=8, floating=False), tensor(2, itemsize=8, floating=False)
    bags = cost("aten::_embedding_bag_forward_only", [tensor(50_000, 64), indices, offsets], [tensor(2, 64)])
    assert bags == Cost(6 * 64, 8 * 8 + 2 * (6 + 2) * 64)


@pytest.mark.parametrize("name", ["vllm::x", "aten::_flash_attention_forward", "aten::no_such_operator.out"])
def test_no_formula_is_unknown_and_never_zero(name: str) -> None:
    assert cost(name, [tensor(4)], [tensor(4)]) == UNKNOWN
