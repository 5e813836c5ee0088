"""What became of kernels in a run: added up over processes, and never silently nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from day0.errors import EvidenceMissing
from day0.kernel_uses import KernelUse, judge_uses, read_uses, uses_since
from day0.verdict import Verdict, follow_up

NORM = KernelUse(operator="vllm_ir::rms_norm", kernel="norm", calls=3)
counts = st.integers(0, 1 << 40)


def written(*uses: KernelUse) -> bytes:
    return json.dumps([use.to_json() for use in uses]).encode()


def test_processes_are_added_up() -> None:
    failed = NORM.model_copy(update={"calls": 4, "fallbacks": 2, "reason": "it broke"})
    assert read_uses([written(NORM), written(failed), written()]) == (
        KernelUse(operator="vllm_ir::rms_norm", kernel="norm", calls=7, fallbacks=2, reason="it broke"),
    )


def test_nothing_written_is_no_evidence_and_nothing_else_is_taken_for_it() -> None:
    with pytest.raises(EvidenceMissing, match="plugin was not loaded"):
        read_uses([])
    for text in (b"{", b"[{}]", b'[{"operator": "a", "kernel": "b", "calls": -1}]', b"\xff", b"[1]"):
        with pytest.raises(EvidenceMissing, match="is not what the kernels' plugin writes"):
            read_uses([written(NORM), text])


@given(counts, counts, counts)
def test_calls_since_are_those_of_the_requests_and_failures_stay(before: int, more: int, failed: int) -> None:
    then = NORM.model_copy(update={"calls": before, "fallbacks": failed})
    now = NORM.model_copy(update={"calls": before + more, "fallbacks": failed})
    new = KernelUse(operator="vllm::silu_and_mul", kernel="act", calls=more)
    assert uses_since([then], [now, new]) == (NORM.model_copy(update={"calls": more, "fallbacks": failed}), new)
    # Counts never go back: those of an engine that was started anew are not taken for negative ones.
    assert uses_since([now], [then])[0].calls == 0


def test_calls_that_were_answered_pass() -> None:
    check = judge_uses([NORM, NORM.model_copy(update={"operator": "vllm_ir::other", "calls": 0})], Verdict.FAIL)
    assert check.verdict is Verdict.PASS  # one of its places is enough: a model has not all of them
    assert "3 norm for vllm_ir::rms_norm" in check.reason
    assert follow_up([check]) == []


@pytest.mark.parametrize("otherwise", list(Verdict))
def test_what_was_fallen_back_from_passes_only_where_the_model_is_good(otherwise: Verdict) -> None:
    failed = KernelUse(operator="vllm::silu_and_mul", kernel="act", fallbacks=9, reason="RuntimeError: no")
    check = judge_uses([NORM, failed], otherwise)
    assert check.verdict is (Verdict.PASS if otherwise.good else otherwise)
    sentence = "kernel act failed 9 calls of vllm::silu_and_mul and was fallen back from: RuntimeError: no"
    assert follow_up([check]) == [sentence]
    assert sentence in check.reason


def test_what_no_call_reached_is_followed_up_with_why() -> None:
    silent = KernelUse(operator="vllm::silu_and_mul", kernel="act")
    assert follow_up([judge_uses([NORM, silent], Verdict.PASS)]) == [
        "no call reached kernel act: the model called none of vllm::silu_and_mul"
    ]
    declined = silent.model_copy(update={"declined": 1200})
    (sentence,) = follow_up([judge_uses([declined], Verdict.PASS)])
    assert sentence.endswith(
        "not accepted for the dtype, device or form of those that there were (1,200 of vllm::silu_and_mul)"
    )
    nowhere = silent.model_copy(update={"reason": "AttributeError: no such layer"})
    assert "was not put in the place of vllm::silu_and_mul: AttributeError" in judge_uses([nowhere]).reason


def test_no_kernel_at_all_is_no_pass() -> None:
    assert judge_uses([], Verdict.PASS).verdict is Verdict.INCONCLUSIVE
