"""Whether a target has an operator: by what was measured, registered and listed, without being fooled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.config import load_config, named_config
from day0.errors import InputError
from day0.home import PROJECT
from day0.target_operators import TargetOperators
from tasks.operators.records import EXPLICIT, Capture, Measured
from tasks.operators.support.rank import OperatorSupport, support_for
from tests.operators.captures import ATTENTION, CALLED, FUSED, PARTS, SOFTMAX, dispatcher, listed, make_capture


def test_the_dispatcher_of_the_cpu() -> None:
    support = support_for(dispatcher(), make_capture())
    assert support.lookup("aten::mm") == ("native", None)
    assert support.lookup("aten::_to_copy") == ("composite", "aten::copy_")
    assert support.lookup("aten::copy_") == ("composite", EXPLICIT)
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
    whole = support_for(listed("aten::bmm", *SOFTMAX), make_capture())
    assert whole.lookup(ATTENTION) == ("composite", "aten::_safe_softmax, aten::bmm")
    assert support_for(listed(*SOFTMAX), make_capture()).lookup(ATTENTION) == ("missing", "aten::bmm")
    # The composite itself never falls back: it is taken apart first, and then its part does.
    support = support_for(listed(*SOFTMAX, fallback="CPU"), make_capture())
    assert support.lookup(ATTENTION) == ("fallback", "aten::bmm")


def test_an_incomplete_list_leaves_unknown() -> None:
    support = support_for(listed("aten::mm", complete=False), make_capture())
    assert support.lookup("aten::mm")[0] == "native"
    assert support.lookup("aten::mul.Tensor")[0] == "unknown"


def test_nothing_called_is_lacking_on_the_cpu() -> None:
    support = support_for(dispatcher(), make_capture())
    assert {support.lookup(name)[0] for name in CALLED} == {"native", "composite"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dispatch_keys: CPU\nsource: x", "'dispatch_key'"),
        ("source: x", "needs dispatch_key, lists or operators"),
        ("dispatch_key: CPU\ntorch_build: '('\nsource: x", "no regular expression"),
        ("operators: [mul]\nsource: x", "aten::mul.Tensor"),
        ("dispatch_key: CPU\ndevice: the CPU\nsource: x", "no device of torch"),
        ("device: npu\noperators: ['aten::mm']\nsource: x", "needs its dispatch_key too"),
        ("dispatch_key: CPU\nmodules: [torch-npu]\nsource: x", "not the name of a Python module"),
    ],
)
def test_a_wrong_list_is_an_error_that_names_it(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "npu.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"npu\.yaml") as error:
        load_config(file, TargetOperators)
    assert named in str(error.value)


LLAMA: dict[str, Any] = json.loads(Path(__file__).with_name("llama_before_dispatch.json").read_text())


def on(target: str, *measured: Measured, **fields: Any) -> OperatorSupport:
    """A target of configs/operators, asked where torch is built for the CPU alone."""
    operators = named_config(PROJECT / "configs/operators", target, TargetOperators)
    content = {"registrations": LLAMA["registrations"], "packages": {"torch": "2.13.0+cpu"}, "key_readable": False}
    return support_for(operators, Capture.model_validate({**content, **fields}), measured)


def counted(support: OperatorSupport) -> dict[str, int]:
    statuses = [support.lookup(name)[0] for name in LLAMA["called"]]
    assert len(statuses) == 34
    return {status: statuses.count(status) for status in sorted(set(statuses))}


def test_llama_before_dispatch_by_the_vendors_lists() -> None:
    assert counted(on("ascend")) == {"native": 21, "composite": 13}
    assert counted(on("gaudi")) == {"native": 25, "composite": 9}
    # musa_functions.yaml names 18 of them, of which unsqueeze for quantised tensors only: torch's own composite serves.
    assert counted(on("musa")) == {"native": 17, "composite": 17}
    assert on("musa").lookup("aten::unsqueeze") == ("composite", EXPLICIT)
    for target in ("cuda", "rocm", "xpu", "mps"):
        assert set(counted(on(target))) == {"native", "composite"}, target


def test_what_lists_lack() -> None:
    for target in ("ascend", "musa", "gaudi"):
        grouped = on(target).support("aten::_grouped_mm")
        assert (grouped.status, grouped.via) == ("composite", "aten::mm.out for each group")
        assert (grouped.apart, grouped.reads_host) == (True, True)
        assert grouped.notes == ("made of other operators here, where CUDA has a kernel of its own",)
    own = on("cuda").support("aten::_grouped_mm")
    assert (own.status, own.via, own.apart, own.reads_host) == ("native", None, False, False)
    histc = on("gaudi").support("aten::histc")
    assert (histc.status, histc.via) == ("fallback", "CPU")
    assert any("no graph with it can be captured" in note and "HPU graphs" in note for note in histc.notes)
    assert on("cuda").lookup("aten::add.out") == ("native", None)


@pytest.mark.parametrize(
    ("target", "status", "via", "apart"),
    [
        (
            "cuda",
            "composite",
            "aten::_scaled_dot_product_flash_attention or aten::_scaled_dot_product_efficient_attention",
            False,
        ),
        ("mps", "composite", "aten::_scaled_dot_product_attention_math_for_mps", False),
        ("musa", "composite", "aten::_scaled_dot_product_attention_flash_musa", False),
        ("ascend", "native", None, False),
        ("gaudi", "composite", "aten::_safe_softmax, aten::bmm", True),
    ],
)
def test_attention_is_one_kernel_where_the_device_has_one(
    target: str, status: str, via: str | None, apart: bool
) -> None:
    """Whatever it becomes on the CPU, and taken apart on no device at all."""
    found = on(target, registrations=make_capture().registrations, parts=PARTS).support(ATTENTION)
    assert (found.status, found.via, found.apart) == (status, via, apart)


def test_attention_whose_kernel_was_measured_wrong_is_taken_apart() -> None:
    kernels = ("flash", "efficient")
    wrong = [Measured(overload=f"aten::_scaled_dot_product_{k}_attention", works=False, wrong=True) for k in kernels]
    found = on("cuda", *wrong, registrations=make_capture().registrations, parts=PARTS).support(ATTENTION)
    assert (found.via, found.apart) == ("aten::_safe_softmax, aten::bmm", True)


def test_the_evidence_is_named_with_its_date() -> None:
    evidence = on("ascend").support("aten::mm").evidence
    assert evidence is not None
    assert (evidence.kind, evidence.date) == ("listed", "2026-08-21")
    assert "Ascend/op-plugin 517f2e7d0f20" in evidence.source


def test_a_target_without_any_list_is_unknown_with_the_reason_and_what_a_library_offers() -> None:
    for target in ("mlu", "dcu", "corex", "kunlun", "maca", "gcu"):
        assert counted(on(target)) == {"unknown": 34}
        support = on(target).support("aten::mm")
        assert support.via is not None
        assert "no list of its operators is known" in support.via
        assert any("flaggems has a kernel (stable 1.0), not proven there" in note for note in support.notes)


def test_a_librarys_kernel_that_fails_on_the_vendors_devices_is_said() -> None:
    notes = on("maca").support("aten::acos").notes
    assert any("does not work there: All dtypes failed, list flaggems-metax" in note for note in notes)
    assert any("not proven there" in note for note in on("mlu").support("aten::acos").notes)


def test_xpu_is_not_falsely_missing() -> None:
    assert on("xpu").lookup("aten::add.Tensor") == ("native", "aten::add.out")
    assert on("xpu").lookup("aten::mm") == ("native", "aten::mm.out")
    ormqr = {"aten::ormqr": {"exists": True, "keys": ["CPU"]}, "aten::strange": {"exists": True, "keys": ["CPU"]}}
    assert on("xpu", registrations=ormqr).lookup("aten::ormqr") == ("fallback", "CPU")
    # What registers in C++ alone is in no list: neither missing nor, as the backend has no general one, a fallback.
    assert on("xpu", registrations=ormqr).lookup("aten::strange")[0] == "unknown"


def test_an_operator_of_cuda_alone_is_missing_and_said_to_be_its() -> None:
    support = on("ascend").support("aten::_scaled_dot_product_cudnn_attention")
    assert support.status == "missing"
    assert "of torch's own backends only CUDA has a kernel of it" in support.notes
    assert on("ascend").lookup("vllm::x") == ("missing", None)


def test_another_vendors_torch_does_not_answer() -> None:
    keys = {"registrations": {"aten::mm": {"exists": True, "keys": ["CUDA"]}}, "key_readable": True}
    nvidia, metax = {"torch": "2.13.0+cu130"}, {"torch": "2.8.0+metax3.7.2.0"}
    assert on("maca", packages=metax, **keys).lookup("aten::mm") == ("native", None)
    status, via = on("maca", packages=nvidia, **keys).lookup("aten::mm")
    assert (status, "is not the target's" in str(via)) == ("unknown", True)
    by_nvidia = on("cuda", packages=nvidia, **keys).support("aten::mm").evidence
    by_metax = on("cuda", packages=metax, **keys).support("aten::mm").evidence
    assert by_nvidia is not None
    assert by_metax is not None
    assert (by_nvidia.kind, by_metax.kind) == ("registered", "listed")
    plugin = {"registrations": {"aten::mm": {"exists": True, "keys": ["PrivateUse1"]}}, "key_readable": True}
    assert "torch_mlu is not installed" in str(on("mlu", **plugin).lookup("aten::mm")[1])


def test_what_was_measured_decides_and_what_contradicts_it_is_named() -> None:
    wrong = Measured(overload="aten::mm", works=True, wrong=True, detail="transposed, 3.1 at (2, 7)")
    support = on("ascend", wrong).support("aten::mm")
    assert support.status == "missing"
    assert support.evidence is not None
    assert support.evidence.kind == "measured"
    conflict = next(c for c in support.conflicts if "aten::mm is measured: missing" in c)
    assert "wrong: transposed, 3.1 at (2, 7)" in conflict
    assert "but listed: native, list ascend-op-plugin" in conflict
    works = on("gaudi", Measured(overload="aten::histc", works=True)).support("aten::histc")
    assert works.status == "native"
    assert any("but listed: fallback" in c for c in works.conflicts)


@pytest.mark.parametrize(
    ("measured", "status", "slow"),
    [
        ({"works": True}, "native", False),
        ({"works": True, "slow": True}, "native", True),
        ({"works": True, "falls_back": True}, "fallback", False),
        ({"works": False}, "missing", False),
        ({"works": False, "wrong": True, "falls_back": True}, "missing", False),
    ],
)
def test_each_outcome_of_a_measurement(measured: dict[str, bool], status: str, slow: bool) -> None:
    found = Measured.model_validate({"overload": "aten::mm", **measured})
    support = support_for(listed("aten::mul.Tensor"), make_capture(), [found]).support("aten::mm")
    assert support.status == status
    assert support.evidence is not None
    assert (support.evidence.outcome == "slow") is slow


def test_of_several_measurements_the_worst_counts() -> None:
    good, bad = Measured(overload="aten::mm", works=True), Measured(overload="aten::mm", works=False, detail="crashed")
    for order in ([good, bad], [bad, good]):
        support = support_for(listed("aten::mm"), make_capture(), order).support("aten::mm")
        assert (support.status, support.evidence and support.evidence.detail) == ("missing", "does not run: crashed")


def test_a_composite_whose_part_was_measured_wrong_is_no_support() -> None:
    wrong = Measured(overload="aten::bmm", works=False, wrong=True)
    lists = listed("aten::bmm", *SOFTMAX)
    assert support_for(lists, make_capture(), [wrong]).lookup(ATTENTION) == ("missing", "aten::bmm")
    whole = Measured(overload=ATTENTION, works=True)
    measured = support_for(lists, make_capture(), [whole]).support(ATTENTION)
    assert measured.apart
    assert (measured.status, measured.via) == ("composite", "aten::_safe_softmax, aten::bmm")


def test_the_dispatcher_outranks_the_list_and_the_report_names_the_difference() -> None:
    operators = TargetOperators(
        dispatch_key="CUDA", operators=("aten::mm", "aten::isin.Tensor_Tensor"), source="a list"
    )
    registrations = {
        "aten::mm": {"exists": True, "keys": ["CPU"]},
        "aten::mul.Tensor": {"exists": True, "keys": ["CUDA"]},
    }
    support = support_for(operators, make_capture(registrations=registrations))
    mm, mul = support.support("aten::mm"), support.support("aten::mul.Tensor")
    assert (mm.status, mul.status) == ("missing", "native")
    assert any("but listed: native, a list" in conflict for conflict in mm.conflicts)
    assert any("but listed: missing, a list" in conflict for conflict in mul.conflicts)
    unreadable = support_for(operators, make_capture(registrations=registrations, key_readable=False))
    assert unreadable.support("aten::mm").status == "native"
    assert unreadable.support("aten::mm").conflicts == ()


def test_dtypes_count_where_the_list_tells_them() -> None:
    gaudi = on("gaudi")
    assert gaudi.support("aten::mm", ["bfloat16"]).status == "native"
    double = gaudi.support("aten::mm", ["float64"])
    assert double.status == "fallback"
    assert double.evidence is not None
    assert double.evidence.detail == "not for float64"
    assert any("test_compare_cpu (float32)" in c for c in on("ascend").support("aten::mm", ["float32"]).conflicts)
    assert on("ascend").support("aten::mm", ["bfloat16"]).conflicts == ()


def test_parts_that_go_round_in_a_circle_end() -> None:
    parts = {"aten::a": {"decomposed": ["aten::b"]}, "aten::b": {"decomposed": ["aten::a"]}}
    implicit = {"exists": True, "keys": ["CompositeImplicitAutograd"]}
    capture = make_capture(registrations={"aten::a": implicit, "aten::b": implicit}, parts=parts)
    assert support_for(listed("aten::mm"), capture).lookup("aten::a") == ("unknown", "aten::b")
