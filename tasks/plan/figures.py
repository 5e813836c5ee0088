"""What is reached of a target's peaks: measured on it, or else assumed."""

from __future__ import annotations

from dataclasses import dataclass, fields

from day0.target import Target


@dataclass(frozen=True)
class Figures:
    """Shares of peaks, and least times in seconds. The defaults are for a target that nobody measured.

    They are what was fitted for an H200 (configs/targets/h200.yaml; benchmarks/planner.py), rounded: layouts of one
    target can be compared by them, times are as far from those of another accelerator as its engine is.
    """

    compute: float = 0.7
    memory: float = 0.85
    attention: float = 0.8
    attention_compute: float = 0.45
    experts: float = 0.25
    quantised_experts: float = 0.12
    widened: float = 0.35
    link: float = 0.9
    kernel_seconds: float = 4.5e-6
    quantised_seconds: float = 20e-6
    collective_seconds: float = 6e-6
    scale_out_seconds: float = 45e-6


def figures_of(target: Target) -> Figures:
    """Those of a target, completed by the defaults."""
    known = {
        field.name: figure.value
        for field in fields(Figures)
        if (figure := getattr(target.efficiency, field.name, None)) is not None
    }
    if target.scale_out_latency is not None:
        known["scale_out_seconds"] = target.scale_out_latency.value
    return Figures(**known)
