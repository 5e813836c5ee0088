"""Calls as JSON: what is written is read again, and what foreign code may have written is not believed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.operators.records import TensorSpec, WrittenCall

pytestmark = pytest.mark.reference

SPEC = TensorSpec("bfloat16", (4, 8), (8, 1))
TENSOR = {"tensor": "bfloat16", "shape": [4, 8], "stride": [8, 1]}


def test_a_call_is_the_same_after_it_was_written() -> None:
    import torch

    from tasks.operators.calls import Call
    from tasks.operators.written import read_call, write_call

    aten = torch.ops.aten
    for call in (
        Call(aten.mm.default, (SPEC, SPEC), {}),
        Call(aten.index.Tensor, (SPEC, [None, SPEC._replace(dtype="bool")]), {}),
        Call(aten._to_copy.default, (SPEC,), {"dtype": torch.float32, "memory_format": torch.preserve_format}),
        Call(aten.full.default, ([2, 3], -math.inf), {"device": torch.device("cpu"), "layout": torch.strided}),
        Call(aten.div.Tensor_mode, (SPEC, SPEC), {"rounding_mode": "floor"}),
    ):
        sent = WrittenCall.model_validate_json(write_call(call).model_dump_json())
        assert read_call(sent) == call
        assert read_call(sent, foreign=True) == call


def test_what_has_no_writing_is_named() -> None:
    import torch

    from tasks.operators.calls import Call
    from tasks.operators.written import write_calls

    odd = Call(torch.ops.aten.randn.generator, ([2], torch.Generator()), {})
    calls, reasons = write_calls({"aten::randn.generator": [odd]})
    assert calls == ()
    assert reasons == {"aten::randn.generator": "an argument of type Generator cannot be told to another process"}


@pytest.mark.parametrize(
    ("overload", "args", "said"),
    [
        ("aten::from_file", ["/etc/hosts", True, 4], "none of those that are run for such code"),
        ("aten::_cholesky_solve_helper", [TENSOR, TENSOR, False], "none of those that are run for such code"),
        ("prim::device", [TENSOR], "none of those that are run for such code"),
        ("aten::never_heard_of", [], "no such operator"),
        ("aten::mm.out.more", [], "no such operator"),
        ("__class__::__init__", [], "no such operator"),
        ("aten::mm", [{"tensor": "bfloat16", "shape": [4, -8], "stride": [8, 1]}], "malformed"),
        ("aten::mm", [{"tensor": "manual_seed", "shape": [4], "stride": [1]}], "malformed"),
        ("aten::mm", [{"tensor": "bfloat16", "shape": [4, 8], "stride": [8]}], "malformed"),
        ("aten::mm", [{"torch": "load"}], "malformed"),
        ("aten::mm", [{"unheard": 1}], "malformed"),
    ],
)
def test_what_foreign_code_may_have_written_is_not_believed(overload: str, args: list[Any], said: str) -> None:
    from tasks.operators.written import Unreadable, read_call

    with pytest.raises(Unreadable, match=said):
        read_call(WrittenCall(overload=overload, args=tuple(args)), foreign=True)


def test_calls_that_would_take_all_memory_or_fit_nothing_are_not_measured() -> None:
    from tasks.operators.measure import measure
    from tasks.operators.records import Capture

    hostile: list[dict[str, Any]] = [
        {"overload": "aten::ones", "args": [[1 << 40]]},
        {"overload": "aten::repeat", "args": [TENSOR, [1 << 20, 1 << 20]]},
        {"overload": "aten::add.Tensor", "args": [TENSOR | {"stride": [1 << 50, 1]}, TENSOR]},
        {"overload": "aten::sub.Tensor", "args": [TENSOR | {"shape": [1 << 40, 8]}, TENSOR]},
        {"overload": "aten::mm", "args": []},
        {"overload": "aten::addmm", "kwargs": {"self": 3}},
        {"overload": "aten::bmm", "args": [TENSOR | {"shape": [1 << 22, 8]}, TENSOR]},
        {"overload": "aten::index.Tensor", "args": [TENSOR, 5]},
        {"overload": "aten::scaled_dot_product_attention", "args": [3, 4, 5]},
        {"overload": "aten::_grouped_mm", "args": [TENSOR, TENSOR, "x"]},
    ]
    sound = {"overload": "aten::neg", "args": [TENSOR]}
    capture = Capture.model_validate({"calls": [sound, *hostile], "source": "code", "dtype": "bfloat16"})
    found = measure(capture, "cpu")
    assert found.measured.keys() == {"aten::neg"}
    assert found.measured["aten::neg"].works
    assert set(found.unmeasured) == {call["overload"] for call in hostile}
    assert "more than" in found.unmeasured["aten::ones"]
    assert "spans more than" in found.unmeasured["aten::add.Tensor"]
