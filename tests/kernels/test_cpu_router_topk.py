"""Choice of experts in C++."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.cpu import INSTRUCTION_SETS, called, check_all_cases, check_layouts, fresh, instruction_set, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_case_is_as_near_to_float64_as_the_reference() -> None:
    check_all_cases("router_topk")


def test_any_layout_gives_the_same() -> None:
    check_layouts("router_topk")


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_of_equal_scores_the_lower_index_is_better(isa: str) -> None:
    kernel("router_topk")
    with instruction_set(isa):
        _, ids = torch.ops.day0.router_topk(torch.zeros(1, 40), None, 6, "sigmoid", 4, 2, True, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_extremes_are_chosen_as_the_reference_chooses(isa: str, value: float) -> None:
    definition = kernel("router_topk")
    for index in (4, 7, 9):
        args = fresh(definition, index)
        args[0][::2, 5] = value
        with instruction_set(isa):
            found = called(definition, tuple(args))
        for got, wanted in zip(found, definition.reference(*args), strict=True):
            assert torch.allclose(got.double(), wanted.double(), equal_nan=True)


def test_more_experts_than_the_kept_groups_have_are_an_error() -> None:
    kernel("router_topk")
    with pytest.raises(RuntimeError, match="5 experts cannot be chosen of 4"):
        torch.ops.day0.router_topk(torch.zeros(1, 8), None, 5, "sigmoid", 4, 2, True, 1.0)
