"""The copy that a CPU's bandwidth is measured by."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

from tasks.kernels import load
from tasks.kernels.build import build
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.timing_records import STREAMING_COPY
from tests.kernels.cpu import BUILT, quick_cases

pytestmark = [pytest.mark.reference, pytest.mark.compiler]


def test_every_byte_is_copied_whatever_the_size_and_alignment() -> None:
    definition = KernelDefinition(STREAMING_COPY)
    with mock.patch.dict(os.environ, {"DAY0_HOME": str(BUILT)}):
        load.load(definition, "cpu", build(definition, "cpu").path)
    copy_to = load.out_operator(definition, "cpu")
    assert copy_to is not None
    for case in quick_cases(definition):
        for offset in (0, 1):
            (whole,) = definition.make(case, torch.float32, torch.Generator().manual_seed(1), "cpu")
            x, room = whole[offset:], torch.full((len(whole) + 16,), torch.nan)
            out = room[offset : offset + len(x)]
            copy_to(x, out0=out)
            assert torch.equal(out, x)
            assert room[:offset].isnan().all()
            assert room[offset + len(x) :].isnan().all()
            assert torch.equal(load.operator(definition)(x), x)
