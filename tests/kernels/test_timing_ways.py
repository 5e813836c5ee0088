"""What is computed while it is timed is held against the framework's, as acceptance compares it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.subject import widened
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import kernels_folder
from tasks.kernels.timing_ways import Way, check
from tests.kernels.conftest import MakeKernel

pytestmark = pytest.mark.reference

FP8 = torch.float8_e4m3fn
SEEN = """
SEEN = []


def reference(x, by):
    return (x * by,)


def comparable(args, outputs):
    SEEN.append(args[0].dtype)
    return outputs
"""


@pytest.mark.parametrize(
    ("given", "accepted", "timed"),
    [
        (torch.bfloat16, torch.float64, torch.float32),
        (torch.float16, torch.float64, torch.float32),
        (torch.float32, torch.float64, torch.float32),
        (torch.float64, torch.float64, torch.float64),
        (FP8, FP8, FP8),
        (torch.float8_e5m2, torch.float8_e5m2, torch.float8_e5m2),
        (torch.int32, torch.int32, torch.int32),
    ],
)
def test_codes_stay_codes_wherever_results_are_compared(
    given: torch.dtype, accepted: torch.dtype, timed: torch.dtype, make_kernel: MakeKernel
) -> None:
    value = torch.ones(3).to(given)
    assert widened(value).dtype == accepted
    definition = KernelDefinition(make_kernel(**{"reference.py": SEEN}))
    out = (torch.ones(3),)
    check(definition, way(definition, "float32"), (value, 2.5), out, out, "here")
    assert definition.reference.__globals__["SEEN"] == [timed, timed]  # of what was found, and of what is expected


def test_what_is_no_tensor_stays() -> None:
    assert [widened(value) for value in (None, 3, 0.5, "x")] == [None, 3, 0.5, "x"]


def way(definition: KernelDefinition, dtype: str) -> Way:
    return Way("cpu", lambda: None, judge=Judge(dtype, definition.file.tolerance[dtype]))


def written(x: float) -> tuple[KernelDefinition, tuple[Any, ...], tuple[torch.Tensor, ...]]:
    """A cache write of tokens that are all `x`, and its right outputs."""
    definition = KernelDefinition(kernels_folder() / "kv_cache_write")
    case = {"tokens": 4, "heads": 2, "key_size": 16, "value_size": 16, "fp8": True, "block_size": 16}
    key, value, *rest = definition.make(case, torch.bfloat16, torch.Generator().manual_seed(0), "cpu")
    args = (torch.full_like(key, x), torch.full_like(value, x), *rest[:-2], torch.ones(1), torch.ones(1))
    return definition, args, definition.reference(*args)


def test_a_code_on_the_other_side_of_a_tie_is_right_and_any_other_is_wrong() -> None:
    # 17 lies between the codes of 16 and 18, a tie.
    definition, args, right = written(17.0)
    slot = int(args[4][0])
    place = (slot // 16, slot % 16, 1, 3)
    assert right[0][place].float() == 16
    for code, wrong in ((18.0, False), (20.0, True)):
        found = tuple(output.clone() for output in right)
        found[0][place] = torch.tensor(code).to(FP8)
        if wrong:
            with pytest.raises(Fault, match=r"here: output 0 at \(.*, 1, 3\)"):
                check(definition, way(definition, "bfloat16"), args, found, right, "here")
        else:
            check(definition, way(definition, "bfloat16"), args, found, right, "here")
