"""What torch's own kernels for any device call, as torch itself shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from day0.home import PROJECT
from day0.target import load_target
from tasks.operators.records import CaptureRequest
from tasks.operators.scan import judge
from tasks.operators.settings import operator_settings
from tasks.operators.support.composites import composites, is_several, made_of, parts_of

pytestmark = pytest.mark.reference


def _examples() -> dict[str, Callable[[], Any]]:
    """A call of each on tensors of the CPU, where torch has no kernel of its own for it either."""
    import torch

    aten = torch.ops.aten
    x, at = torch.randn(4, 8), torch.tensor([0, 2, 1])
    ends = torch.tensor([1, 4], dtype=torch.int32)
    weights = torch.randn(2, 8, 8, dtype=torch.bfloat16)
    return {
        "aten::_grouped_mm": lambda: aten._grouped_mm.default(x.bfloat16(), weights, ends),
        "aten::_safe_softmax": lambda: aten._safe_softmax.default(x, -1),
        "aten::_to_copy": lambda: aten._to_copy.default(x, dtype=torch.float64),
        "aten::abs": lambda: aten.abs.default(x),
        "aten::arange": lambda: aten.arange.default(4),
        "aten::arange.start": lambda: aten.arange.start(1, 4),
        "aten::arange.start_step": lambda: aten.arange.start_step(1, 9, 2),
        "aten::clone": lambda: aten.clone.default(x),
        "aten::constant_pad_nd": lambda: aten.constant_pad_nd.default(x, [1, 1]),
        "aten::embedding": lambda: aten.embedding.default(x, at),
        "aten::full": lambda: aten.full.default([2], 1.0),
        "aten::full_like": lambda: aten.full_like.default(x, 1.0),
        "aten::index_put_": lambda: aten.index_put_.default(x.clone(), [at], x[:3].clone()),
        "aten::logical_not": lambda: aten.logical_not.default(x),
        "aten::masked_fill.Scalar": lambda: aten.masked_fill.Scalar(x, x > 0, 1.0),
        "aten::new_full": lambda: aten.new_full.default(x, [2], 1.0),
        "aten::new_ones": lambda: aten.new_ones.default(x, [2]),
        "aten::new_zeros": lambda: aten.new_zeros.default(x, [2]),
        "aten::ones": lambda: aten.ones.default([2]),
        "aten::ones_like": lambda: aten.ones_like.default(x),
        "aten::polar": lambda: aten.polar.default(x, x),
        "aten::rsub.Scalar": lambda: aten.rsub.Scalar(x, 2),
        "aten::stack": lambda: aten.stack.default([x, x]),
        "aten::zeros": lambda: aten.zeros.default([2]),
        "aten::zeros_like": lambda: aten.zeros_like.default(x),
    }


def _called(call: Callable[[], Any]) -> list[str]:
    """All operators that were called, with their overloads."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    with profile(
        activities=[ProfilerActivity.CPU], experimental_config=_ExperimentalConfig(capture_overload_names=True)
    ) as seen:
        call()
    return [f"{e.name}.{e.overload_name}" if e.overload_name else e.name for e in seen.events()]


def test_torchs_kernels_call_what_is_written_of_them() -> None:
    import torch

    examples = _examples()
    # A convolution and attention become what only other devices have.
    assert examples.keys() == composites().keys() - {"aten::convolution", "aten::scaled_dot_product_attention"}
    for name, call in examples.items():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeExplicitAutograd"), name
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"), name
        called = _called(call)
        assert {name, *composites()[name].parts} <= set(called), called


def test_a_grouped_product_is_a_product_for_each_group_and_waits_for_their_ends() -> None:
    called = _called(_examples()["aten::_grouped_mm"])
    assert called.count("aten::mm.out") == 2
    assert called.count("aten::_local_scalar_dense") == 2


def test_a_convolution_is_one_kernel_of_each_device() -> None:
    assert made_of("aten::convolution", "CUDA") is None
    assert made_of("aten::convolution", "PrivateUse1") is not None


def test_parts_of_parts_are_known() -> None:
    assert parts_of(["aten::_safe_softmax", "aten::mm"]) == set(composites()["aten::_safe_softmax"].parts)
    assert is_several(composites()["aten::_safe_softmax"].parts)
    assert not is_several(composites()["aten::masked_fill.Scalar"].parts)


@pytest.mark.parametrize("model", ["deepseek-ai__DeepSeek-V3", "openai__gpt-oss-120b"])
def test_a_mixture_of_experts_runs_where_there_is_no_grouped_product_but_not_as_one_kernel(model: str) -> None:
    from tasks.operators.capture import capture

    config = json.loads((PROJECT / f"tests/data/configs/{model}.json").read_text())
    found = capture(CaptureRequest(config=config, prompt=512, context=512, dispatch_key=None))
    # By the vendors' lists: none of these backends is in this torch.
    found = found.model_copy(update={"key_readable": False})
    for target in ("gaudi3", "ascend-910b", "mtt-s5000"):
        asked = operator_settings(target, load_target(target), measure=False)
        report = judge(config, asked, found)
        assert {gap.name for gap in report.gaps} <= {"aten::histc"}
        for name, phase in report.phases.items():
            grouped = next(o for o in phase.operators if o.name == "aten::_grouped_mm")
            assert (grouped.status, grouped.via) == ("composite", "aten::mm.out for each group")
            assert phase.native is not None
            assert phase.composite is not None
            assert phase.native < 0.8
            assert phase.native + phase.composite == pytest.approx(1, abs=1e-4)
            lists = {reach.share: reach.operators for reach in report.reach if reach.phase == name}
            assert lists[0.8] == lists[0.95] == ("aten::_grouped_mm",)
            assert set(lists[1.0]) == {o.name for o in phase.operators if o.apart} | {gap.name for gap in report.gaps}
    # CUDA's is one kernel.
    report = judge(config, operator_settings("h200", load_target("h200"), measure=False), found)
    assert "aten::_grouped_mm" not in {gap.name for gap in (*report.gaps, *report.apart)}
