"""kernel.yaml allows what honest implementations of each kernel err, and not what wrong ones do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.tolerances import Measurement, implementations, measure
from tasks.kernels.definition import Tolerance
from tasks.kernels.find import find_kernel, kernel_names

pytestmark = pytest.mark.reference

#: Bytes that a case may move in float32, so that the tests are quick; `python -m benchmarks.tolerances` has all.
MOST = 1 << 20
#: Attention has a soft cap and FP8 only in larger ones.
OF = {"paged_decode_attention": 1 << 25}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are small: threads wait for each other longer than they work, and on a busy machine much longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", kernel_names())
def test_limits_lie_between_honest_and_wrong_implementations(name: str, dtype: str) -> None:
    definition = find_kernel(name)
    honest, wrong = implementations(definition, dtype)
    assert min(len(honest), len(wrong)) >= 2
    found = measure(definition, dtype, honest | wrong, seeds=1, seconds=60, draws=1, most=OF.get(name, MOST))
    assert {key: found[key].reason for key in honest if found[key].rejected} == {}
    assert {key: found[key].share.least for key in wrong if not found[key].rejected} == {}


@pytest.mark.parametrize("name", kernel_names())
def test_a_reason_says_what_was_measured(name: str) -> None:
    """Of each dtype, or which other dtype's holds for it."""
    tolerances = find_kernel(name).file.tolerance
    assert [dtype for dtype, one in tolerances.items() if not any(letter.isdigit() for letter in one.reason)] == []


def test_a_measurement_goes_on_after_a_fault() -> None:
    judge = Measurement("float32", Tolerance(ratio=2, atol=0, reason="of the test"))
    exact = torch.linspace(1, 2, 1000, dtype=torch.float64)
    near, far = exact.float(), (exact + 1e-3).float()
    for outputs in (far, near, far):
        judge.compare([outputs], [near], [exact], "here")
    judge.finish()
    assert [reason.partition(":")[0] for reason in judge.reasons] == ["error"] * 3
    assert judge.sums[0].shares["largest"] > 1000
