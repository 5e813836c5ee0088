"""Gated activation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from tests.kernels.variants import arithmetic
from tests.kernels.variants.arithmetic import ALL, NARROW, WIDE, Compute, Outputs, Variants, rounded

Function = Callable[[torch.Tensor], torch.Tensor]


def _silu(gate: torch.Tensor, alpha: float) -> torch.Tensor:
    return gate * torch.sigmoid(alpha * gate)


def _erfc(gate: torch.Tensor) -> torch.Tensor:
    return gate * (torch.erfc(gate * -(0.5**0.5)) / 2)


def _erf(gate: torch.Tensor) -> torch.Tensor:
    return 0.5 * gate * (1 + torch.erf(gate * 0.5**0.5))


def _angle(gate: torch.Tensor) -> torch.Tensor:
    return (gate + 0.044715 * gate * gate * gate) * math.sqrt(2 / math.pi)


def _by_tanh(tanh: Function) -> Function:
    return lambda gate: 0.5 * gate * (1 + tanh(_angle(gate)))


_gelu_tanh = _by_tanh(torch.tanh)


def _by_exp(gate: torch.Tensor) -> torch.Tensor:
    return gate * arithmetic.reciprocal_approx(1 + arithmetic.exp_approx(-2 * _angle(gate)))


def _erf_of_five_terms(value: torch.Tensor) -> torch.Tensor:
    """Abramowitz and Stegun 7.1.26, within 1.5e-7, as kernels without an error function have it."""
    size = value.abs()
    t = 1 / (1 + 0.3275911 * size)
    terms = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return (1 - terms * torch.exp(-size * size)) * value.sign()


def gated(
    silu: Callable[[torch.Tensor, float], torch.Tensor] = _silu,
    gelu: Function = _erfc,
    gelu_tanh: Function = _gelu_tanh,
    rounds: Callable[[torch.Tensor, torch.dtype], torch.Tensor] | None = None,
    last: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = torch.Tensor.to,
    limits: bool = True,
    short: int = 0,
) -> Compute:
    """The operator with one way of each of its functions; `rounds` is what the activation alone is rounded by."""

    def run(
        x: torch.Tensor, activation: str, limit: float | None, alpha: float, beta: float, interleaved: bool
    ) -> Outputs:
        wide = x.float()
        gate, up = (wide[..., ::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
        if limit is not None:
            gate = gate.clamp(max=limit)
            up = up.clamp(min=-limit, max=limit) if limits else up
        active = silu(gate, alpha) if activation == "silu" else (gelu if activation == "gelu" else gelu_tanh)(gate)
        if rounds:
            active = rounds(active, x.dtype)
        result = active * (up + beta)
        if short:
            result[..., -short:] = 0
        return (last(result, x.dtype),)

    return run


def _silu_divided(gate: torch.Tensor, alpha: float) -> torch.Tensor:
    return gate / (1 + torch.exp(-alpha * gate))


def _silu_approx(gate: torch.Tensor, alpha: float) -> torch.Tensor:
    return gate * arithmetic.reciprocal_approx(1 + arithmetic.exp_approx(-alpha * gate))


def _silu_of_tanh(tanh: Function) -> Callable[[torch.Tensor, float], torch.Tensor]:
    return lambda gate, alpha: 0.5 * gate * (1 + tanh(0.5 * alpha * gate))


def _coarse_inputs(bits: int) -> Compute:
    inner = gated()
    return lambda x, *rest: inner(arithmetic.coarse(x, bits), *rest)


_APPROXIMATE_TANH = gated(_silu_of_tanh(arithmetic.tanh_approx), gelu_tanh=_by_tanh(arithmetic.tanh_approx))
VARIANTS = Variants(
    honest={
        "divided by 1 + exp": (gated(_silu_divided, _erf, _by_tanh(torch.tanh)), ALL),
        "approximate exponential and reciprocal": (gated(_silu_approx, _erf, _by_exp), ALL),
        "by tanh": (gated(_silu_of_tanh(torch.tanh), _erf), ALL),
        "error function of five terms": (
            gated(gelu=lambda gate: 0.5 * gate * (1 + _erf_of_five_terms(gate * 0.5**0.5))),
            ALL,
        ),
        "approximate tanh": (_APPROXIMATE_TANH, ("bfloat16",)),
        "activation rounded, as vLLM and transformers do": (gated(rounds=rounded), NARROW),
    },
    wrong={
        "x in TF32": (_coarse_inputs(10), WIDE),
        "x in bfloat16": (
            lambda x, *rest: gated()(rounded(x, torch.bfloat16).to(x.dtype), *rest),
            ("float32", "float16"),
        ),
        "approximate tanh": (_APPROXIMATE_TANH, ("float32", "float16")),
        "gelu for gelu_tanh": (gated(gelu_tanh=_erfc), WIDE),
        "gelu_tanh for gelu": (gated(gelu=_by_tanh(torch.tanh)), WIDE),
        "gelu by the sigmoid of 1.702 x": (gated(gelu=lambda gate: gate * torch.sigmoid(1.702 * gate)), ALL),
        "activation in bfloat16": (
            gated(rounds=lambda active, _: rounded(active, torch.bfloat16)),
            ("float32", "float16"),
        ),
        "cut toward zero": (gated(last=arithmetic.cut), NARROW),
        "up without limit": (gated(limits=False), ALL),
        "the last result left": (gated(short=1), ALL),
    },
)
