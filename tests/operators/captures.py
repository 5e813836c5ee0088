"""Captures as the capture process answers them, small, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from day0.target_operators import TargetOperators
from tasks.operators.records import EXPLICIT, IMPLICIT, NON_FUNCTIONAL, Capture, CapturedOperator, Registration
from tasks.operators.settings import OperatorSettings

ATTENTION = "aten::scaled_dot_product_attention"
FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


def registered(*keys: str, delegate: str | None = None) -> Registration:
    return Registration(exists=True, keys=keys, delegate=delegate)


#: As torch 2.13 has them; CUDA's as a build with CUDA would.
REGISTRATIONS = {
    "aten::mm": registered("CPU", NON_FUNCTIONAL, delegate="aten::mm.out"),
    "aten::mm.out": registered("CPU", "CUDA"),
    "aten::mul.Tensor": registered("CPU", NON_FUNCTIONAL, delegate="aten::mul.out"),
    "aten::mul.out": registered("CPU", "CUDA"),
    "aten::isin.Tensor_Tensor": registered("CPU", NON_FUNCTIONAL, delegate="aten::isin.Tensor_Tensor_out"),
    "aten::isin.Tensor_Tensor_out": registered("CPU", "CUDA"),
    "aten::view": registered("CPU", "CUDA"),
    "aten::_to_copy": registered(EXPLICIT),
    "aten::bmm": registered("CPU", NON_FUNCTIONAL, delegate="aten::bmm.out"),
    "aten::bmm.out": registered("CPU", "CUDA"),
    "aten::_safe_softmax": registered(EXPLICIT),
    "aten::copy_": registered(EXPLICIT),
    FUSED: registered("CPU"),
    ATTENTION: registered(IMPLICIT),
    "aten::_fused_only_on_cuda": registered("CUDA"),
    "vllm::x": Registration(exists=False),
}

#: What torch's own kernel of _safe_softmax calls.
SOFTMAX = ("aten::_softmax", "aten::isneginf", "aten::all.dim", "aten::where.self_out")
REGISTRATIONS |= {name: registered("CPU", "CUDA") for name in SOFTMAX}

PARTS = {ATTENTION: {"CPU": (FUSED,), "decomposed": ("aten::_safe_softmax", "aten::bmm")}}

CALLED = ("aten::mm", "aten::mul.Tensor", "aten::isin.Tensor_Tensor", "aten::view", "aten::_to_copy", ATTENTION)


def captured(name: str, flops: float | None = 100.0, moved: float | None = 100.0, calls: int = 1) -> CapturedOperator:
    return CapturedOperator(name=name, calls=calls, flops=flops, bytes=moved)


def make_capture(*operators: str | CapturedOperator, **fields: Any) -> Capture:
    """A model that calls these in prefill and in decode."""
    found = tuple(captured(o) if isinstance(o, str) else o for o in operators or CALLED)
    content: Mapping[str, Any] = {
        "phases": {"prefill": found, "decode": found},
        "registrations": REGISTRATIONS,
        "parts": PARTS,
        "layers": 30,
        "traced_layers": 3,
    }
    return Capture.model_validate({**content, **fields})


def dispatcher(key: str = "CPU", **fields: Any) -> TargetOperators:
    return TargetOperators(dispatch_key=key, source="a test", **fields)


def listed(*operators: str, **fields: Any) -> TargetOperators:
    return TargetOperators(operators=operators, source="a test", **fields)


def settings(operators: TargetOperators, target: str = "npu") -> OperatorSettings:
    return OperatorSettings(target=target, operators=operators, prompt=8, context=8)
