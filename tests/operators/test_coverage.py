"""Whether a target has an operator: by the dispatcher and by a list, without being fooled."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.config import load_config
from day0.errors import InputError
from day0.home import PROJECT
from tasks.operators.coverage import support_for
from tasks.operators.records import EXPLICIT
from tasks.operators.settings import TargetOperators
from tests.operators.captures import ATTENTION, CALLED, FUSED, dispatcher, listed, make_capture


def test_the_dispatcher_of_the_cpu() -> None:
    support = support_for(dispatcher(), make_capture())
    assert support.lookup("aten::mm") == ("native", None)
    assert support.lookup("aten::_to_copy") == ("composite", EXPLICIT)
    assert support.lookup(ATTENTION) == ("composite", FUSED)


def test_a_structured_operator_needs_its_out_kernel() -> None:
    support = support_for(dispatcher("CUDA"), make_capture())
    assert support.lookup("aten::mm") == ("native", "aten::mm.out")
    # torch computes aten::mm for every backend, by calling an aten::mm.out that this one does not have.
    assert support_for(dispatcher("PrivateUse1"), make_capture()).lookup("aten::mm") == ("missing", None)


def test_a_build_without_the_backend_cannot_tell() -> None:
    support = support_for(dispatcher("CUDA"), make_capture(key_readable=False, registrations={}))
    status, via = support.lookup("aten::mm")
    assert status == "unknown"
    assert via is not None
    assert "without CUDA" in via


def test_an_operator_for_another_device_or_of_no_library_is_missing() -> None:
    for operators in (dispatcher(), dispatcher(fallback="CPU"), listed("aten::mm", fallback="CPU")):
        support = support_for(operators, make_capture())
        assert support.lookup("aten::_fused_only_on_cuda")[0] == "missing"
        assert support.lookup("vllm::x")[0] == "missing"
        assert support.lookup("vllm::never_heard_of")[0] == "missing"


def test_a_list_names_overloads() -> None:
    support = support_for(listed("aten::mul.Scalar", "aten::mm", "aten::view.*", "aten::bmm.out"), make_capture())
    assert support.lookup("aten::mul.Tensor") == ("missing", None)
    assert support.lookup("aten::mm") == ("native", None)
    assert support.lookup("aten::view") == ("native", None)
    assert support.lookup("aten::bmm") == ("native", "aten::bmm.out")


def test_what_a_list_lacks_runs_on_the_cpu_only_where_the_backend_does_so() -> None:
    assert support_for(listed("aten::mm"), make_capture()).lookup("aten::isin.Tensor_Tensor") == ("missing", None)
    support = support_for(listed("aten::mm", fallback="CPU"), make_capture())
    assert support.lookup("aten::isin.Tensor_Tensor") == ("fallback", "CPU")


def test_a_composite_is_as_good_as_what_it_becomes() -> None:
    assert support_for(listed(ATTENTION), make_capture()).lookup(ATTENTION) == ("native", None)
    whole = support_for(listed("aten::bmm"), make_capture())
    assert whole.lookup(ATTENTION) == ("composite", "aten::_safe_softmax, aten::bmm")
    assert support_for(listed("aten::mm"), make_capture()).lookup(ATTENTION) == ("missing", "aten::bmm")
    # The composite itself never falls back: it is taken apart first, and then its part does.
    support = support_for(listed("aten::mm", fallback="CPU"), make_capture())
    assert support.lookup(ATTENTION) == ("fallback", "aten::bmm")


def test_an_incomplete_list_leaves_unknown() -> None:
    support = support_for(listed("aten::mm", complete=False), make_capture())
    assert support.lookup("aten::mm")[0] == "native"
    assert support.lookup("aten::mul.Tensor")[0] == "unknown"


def test_nothing_called_is_lacking_on_the_cpu() -> None:
    support = support_for(dispatcher(), make_capture())
    assert {support.lookup(name)[0] for name in CALLED} == {"native", "composite"}


@pytest.mark.parametrize("file", sorted((PROJECT / "configs/operators").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_shipped_lists_load(file: Path) -> None:
    assert load_config(file, TargetOperators).source


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("provider: dispatcher\ndispatch_keys: CPU\nsource: x", "'dispatch_key'"),
        ("provider: dispatcher\nsource: x", "needs dispatch_key"),
        ("provider: list\nsource: x", "needs operators"),
        ("provider: list\noperators: [mul]\nsource: x", "aten::mul.Tensor"),
    ],
)
def test_a_wrong_list_is_an_error_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "npu.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"npu\.yaml") as error:
        load_config(file, TargetOperators)
    assert named in str(error.value)
