"""The arithmetic that a CPU's peak is measured by."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

from benchmarks.kernels import MULTIPLY_ADD
from tasks.kernels import load
from tasks.kernels.build import build
from tasks.kernels.definition import KernelDefinition
from tests.kernels.cpu import BUILT, quick_cases

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_step_is_computed() -> None:
    definition = KernelDefinition(MULTIPLY_ADD)
    with mock.patch.dict(os.environ, {"DAY0_HOME": str(BUILT)}):
        load.load(definition, "cpu", build(definition, "cpu").path)
    for case in quick_cases(definition):
        args = definition.make(case, torch.float32, torch.Generator().manual_seed(1), "cpu")
        assert torch.equal(load.operator(definition)(*args), *definition.reference(*args))
