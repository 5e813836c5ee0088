"""Gated activation in C++."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.cpu import INSTRUCTION_SETS, check_all_cases, check_layouts, instruction_set, kernel

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_case_is_as_near_to_float64_as_the_reference() -> None:
    check_all_cases("gated_activation")


def test_any_layout_gives_the_same() -> None:
    check_layouts("gated_activation")


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_extremes_go_through(isa: str, activation: str) -> None:
    kernel("gated_activation")
    gate = torch.tensor([math.nan, math.inf, 1e30, 100.0, 0.0, -100.0, -1e30, -math.inf])
    with instruction_set(isa):
        out = torch.ops.day0.gated_activation(torch.cat((gate, torch.ones(8))), activation, None, 1.0, 0.0, False)
        limited = torch.ops.day0.gated_activation(torch.cat((gate, gate)), activation, 7.0, 1.0, 1.0, False)
    assert out[0].isnan()
    assert out[1] == math.inf
    assert out[2] == 1e30
    assert out[3] == 100
    assert (out[4:7].abs() < 1e-30).all()
    assert out[7].isnan()
    assert limited[0].isnan()
    assert limited[1:4].allclose(torch.tensor(56.0), atol=0.1)


def test_an_unknown_activation_is_an_error() -> None:
    kernel("gated_activation")
    with pytest.raises(RuntimeError, match="must be silu, gelu or gelu_tanh, got relu"):
        torch.ops.day0.gated_activation(torch.ones(2, 4), "relu", None, 1.0, 0.0, False)
