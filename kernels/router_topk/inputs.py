"""Routers of real models, and shapes that break kernels."""

from __future__ import annotations

from typing import Any

import torch

_DEEPSEEK_V3 = {
    "experts": 256,
    "k": 8,
    "scoring": "sigmoid",
    "biased": True,
    "groups": 8,
    "groups_kept": 4,
    "scale": 2.5,
}
_DEEPSEEK_V4 = {"experts": 256, "k": 6, "scoring": "sqrtsoftplus", "biased": True, "scale": 1.5}

CASES: list[dict[str, Any]] = [
    {"tokens": 1, "experts": 1, "k": 1},
    {"tokens": 3, "experts": 7, "k": 3},
    {"tokens": 5, "experts": 33, "k": 33, "scoring": "sigmoid", "note": "every expert"},
    {"tokens": 33, "experts": 60, "k": 4, "renormalise": False, "note": "Qwen1.5-MoE"},
    {"tokens": 9, "experts": 8, "k": 2, "note": "Mixtral"},
    {"tokens": 17, "experts": 128, "k": 8, "note": "Qwen3-235B"},
    {"tokens": 17, "experts": 160, "k": 6, "groups": 8, "groups_kept": 3, "renormalise": False, "scale": 16.0},
    {"tokens": 33, **_DEEPSEEK_V3, "note": "DeepSeek-V3"},
    {"tokens": 9, **_DEEPSEEK_V3, "experts": 384, "groups": 1, "groups_kept": 1, "note": "Kimi K2"},
    {"tokens": 17, **_DEEPSEEK_V3, "experts": 36, "groups": 4, "groups_kept": 1, "k": 9, "note": "groups of nine"},
    {"tokens": 9, "experts": 64, "k": 6, "equal": True, "scoring": "sigmoid", "note": "many equal scores"},
    {"tokens": 33, **_DEEPSEEK_V4, "note": "DeepSeek-V4-Flash"},
    {"tokens": 5, "experts": 37, "k": 3, "scoring": "sqrtsoftplus", "renormalise": False},
    {"tokens": 9, "experts": 24, "k": 24, "scoring": "sqrtsoftplus", "renormalise": False, "spread": 12.0},
    {"tokens": 9, "experts": 40, "k": 3, "renormalise": False, "spread": 60.0, "note": "exponentials that overflow"},
    {"tokens": 5, "experts": 896, "k": 16, "scoring": "sigmoid", "biased": True, "note": "Kimi K3"},
    {"tokens": 0, **_DEEPSEEK_V3},
    {"tokens": 9000000, **_DEEPSEEK_V3, "huge": True, "note": "more than 2^31 numbers"},
    {"tokens": 16, **_DEEPSEEK_V3, "bench": True, "note": "DeepSeek-V3, decode"},
    {"tokens": 4096, **_DEEPSEEK_V3, "bench": True, "note": "DeepSeek-V3, prefill"},
    {"tokens": 4096, **_DEEPSEEK_V4, "bench": True, "note": "DeepSeek-V4-Flash, prefill"},
    {"tokens": 4096, "experts": 128, "k": 8, "bench": True, "note": "Qwen3-235B, prefill"},
    {"tokens": 32768, **_DEEPSEEK_V3, "bench": True},
]


def make(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, device: str) -> tuple[Any, ...]:
    """(logits, bias, k, scoring, groups, groups_kept, renormalise, scale)."""
    experts = case["experts"]
    logits = torch.randn(case["tokens"], experts, generator=generator, device=device, dtype=torch.float32)
    logits *= case.get("spread", 1.0)
    if case.get("equal"):
        logits = logits.round()
    bias = None
    if case.get("biased"):
        bias = torch.randn(experts, generator=generator, device=device, dtype=torch.float32) / 10
    groups = (case.get("groups", 1), case.get("groups_kept", 1))
    options = (case.get("renormalise", True), case.get("scale", 1.0))
    return logits.to(dtype), bias, case["k"], case.get("scoring", "softmax"), *groups, *options


def huge(case: dict[str, Any], dtype: torch.dtype, generator: torch.Generator, placed: Any) -> tuple[Any, ...]:
    """Rows among zeros, of which the last lie beyond 2^31 elements of the logits."""
    at = torch.tensor([0, 1, case["tokens"] // 2, case["tokens"] - 2, case["tokens"] - 1])
    small = make({**case, "tokens": len(at)}, dtype, generator, str(generator.device))
    args = (placed(small[0], case["tokens"], at), *small[1:])
    return args, small, lambda outputs: tuple(output[at] for output in outputs)
