"""What results are held against: float64 for every kernel, either side of a tie, and the framework's own error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.subject import widened
from tasks.kernels.definition import KernelDefinition, Tolerance, label
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.load import as_tuple
from tests.kernels.cpu import compare_form, quick_cases
from tests.kernels.variants import fused_add_rms_norm, kv_cache_write

pytestmark = pytest.mark.reference


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are small: threads wait for each other longer than they work, and on a busy machine much longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _judge(definition: KernelDefinition, dtype: str) -> Judge:
    return Judge(dtype, definition.file.tolerance[dtype])


def _compare(judge: Judge, definition: KernelDefinition, args: tuple[Any, ...], outputs: Any) -> None:
    wide = tuple(map(widened, args))
    framework, truth = (as_tuple(definition.reference(*given)) for given in (args, wide))
    ours, exact = (compare_form(definition, wide, results) for results in (framework, truth))
    judge.calibrate(ours, exact)
    judge.compare(compare_form(definition, wide, outputs), ours, exact, "here")


@pytest.mark.parametrize("name", kernel_names())
def test_the_truth_is_in_float64(name: str) -> None:
    """In every case, whatever of it is in FP8: a truth that is rounded as the framework is hides its error."""
    definition = find_kernel(name)
    for case in quick_cases(definition):
        args = definition.make(case, torch.bfloat16, torch.Generator().manual_seed(1), "cpu")
        for output in as_tuple(definition.reference(*map(widened, args))):
            if output.is_floating_point() and output.dtype.itemsize > 1:
                assert output.dtype == torch.float64, label(case)


def test_fp8_codes_may_lie_on_either_side_of_a_tie() -> None:
    """A quotient by the reciprocal differs in its last place, so that a few of a million codes are one step off."""
    definition = find_kernel("kv_cache_write")
    case = {**next(case for case in definition.cases if case.get("fp8")), "tokens": 1000, "heads": 8}
    case |= {"key_size": 128, "value_size": 128}
    args = definition.make(case, torch.float32, torch.Generator().manual_seed(3), "cpu")
    by_reciprocal = kv_cache_write.VARIANTS.honest["by the reciprocal"][0](*args)
    framework = definition.reference(*args)
    steps = [(a.view(torch.uint8) != b.view(torch.uint8)).sum() for a, b in zip(by_reciprocal, framework, strict=True)]
    assert sum(steps) > 0
    _compare(_judge(definition, "float32"), definition, args, by_reciprocal)
    wrong = kv_cache_write.VARIANTS.wrong["quotients in float16"][0](*args)
    with pytest.raises(Fault, match="an error of"):
        _compare(_judge(definition, "float32"), definition, args, wrong)


def test_what_is_copied_is_copied_bit_for_bit() -> None:
    definition = find_kernel("kv_cache_write")
    case = next(case for case in definition.cases if not case["fp8"] and case["key_size"] > 1)
    args = definition.make(case, torch.bfloat16, torch.Generator().manual_seed(3), "cpu")
    args[0][0, 0, :2] = torch.tensor([float("nan"), -0.0])
    right = as_tuple(definition.reference(*args))
    _compare(_judge(definition, "bfloat16"), definition, args, right)
    row, within = divmod(int(args[4][0]), case.get("block_size", 16))
    # Another NaN is one, too; a zero of the other sign is another number.
    right[0].view(torch.int16)[row, within, 0, 0] = 0x7FFF
    _compare(_judge(definition, "bfloat16"), definition, args, right)
    right[0][row, within, 0, 1] = 0.0
    with pytest.raises(Fault, match="output 0"):
        _compare(_judge(definition, "bfloat16"), definition, args, right)


def _routed(gap: float, bias: list[float], groups: int) -> tuple[KernelDefinition, Judge, tuple[Any, ...]]:
    """Four experts, of which the first and the third are the best, by `gap` apart in float64."""
    definition = find_kernel("router_topk")
    logits = torch.tensor([[2.0, -1.0, 2.0, -1.0]])
    by = torch.tensor(bias) + torch.tensor([0.0, 0.0, -gap, 0.0])
    return definition, _judge(definition, "float32"), (logits, by, 1, "sigmoid", groups, 1, False, 1.0)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("gap", "right"), [(2e-7, True), (1e-4, False)])
def test_of_nearly_equal_experts_or_groups_either_is_right(gap: float, right: bool, groups: int) -> None:
    definition, judge, args = _routed(gap, [0.0] * 4, groups)
    other = torch.sigmoid(args[0][:, 2:3]), torch.tensor([[2]], dtype=torch.int32)
    assert not torch.equal(definition.reference(*args)[1], other[1])
    if right:
        _compare(judge, definition, args, other)
        return
    with pytest.raises(Fault, match="output 1"):
        _compare(judge, definition, args, other)


def test_weights_of_nearly_equal_experts_may_differ_where_a_bias_makes_them_equal() -> None:
    definition = find_kernel("router_topk")
    logits = torch.tensor([[2.0, -1.0, 1.0, -1.0]])
    bias = torch.zeros(4)
    bias[2] = (torch.sigmoid(logits[0, 0].double()) - torch.sigmoid(logits[0, 2].double())).float()
    args = (logits, bias, 1, "sigmoid", 1, 1, False, 1.0)
    for expert in (0, 2):
        outputs = torch.sigmoid(logits[:, expert : expert + 1]), torch.tensor([[expert]], dtype=torch.int32)
        _compare(_judge(definition, "float32"), definition, args, outputs)
    with pytest.raises(Fault, match="output 1"):
        outputs = torch.sigmoid(logits[:, 1:2]), torch.tensor([[1]], dtype=torch.int32)
        _compare(_judge(definition, "float32"), definition, args, outputs)


@pytest.mark.parametrize("exact", [0.0, 1e-14])
def test_results_that_are_nothing_but_error_allow_no_error_elsewhere(exact: float) -> None:
    """The framework's error in places of such a result would be without bounds."""
    judge = Judge("float32", Tolerance(ratio=2, atol=1e-4, reason="of the test"))
    judge.calibrate([torch.full((3,), 1e-5, dtype=torch.float64)], [torch.full((3,), exact, dtype=torch.float64)])
    right = torch.ones(3, dtype=torch.float64)
    judge.calibrate([right], [right])
    judge.compare([right + 5e-5], [right], [right], "here")
    with pytest.raises(Fault, match=r"an error of 0\.01 "):
        judge.compare([right + 0.01], [right], [right], "here")


def test_single_wide_rows_of_running_sums_are_accepted() -> None:
    """All of a row errs alike, by its sum: the mean error of one row is up to 70 times the framework's, which may be
    right by chance. What is judged of one row is its largest error, by the framework's over all cases.
    """
    definition = find_kernel("fused_add_rms_norm")
    running = fused_add_rms_norm.VARIANTS.honest["running sum"][0]
    wrong = fused_add_rms_norm.VARIANTS.wrong["sum in bfloat16"][0]
    judge = _judge(definition, "float32")
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        for case in ({"rows": 1, "hidden": 7168}, {"rows": 64, "hidden": 1024}):
            args = definition.make(case, torch.float32, generator, "cpu")
            _compare(judge, definition, args, running(*args))
    judge.finish()
    with pytest.raises(Fault, match="an error of"):
        _compare(judge, definition, args, wrong(*args))
