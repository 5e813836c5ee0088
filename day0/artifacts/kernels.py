"""KernelBundle: kernels built for a target's gaps, each with the evidence that it is right."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen
from day0.verdict import Verdict


class Kernel(Frozen):
    name: str
    backend: str
    verdict: Verdict
    error: dict[str, Any]
    speedup: dict[str, Any]
    roofline: float | None
    digest: str


class KernelBundle(Artifact):
    kind: ClassVar[str] = "kernels"

    target: str
    kernels: tuple[Kernel, ...] = ()
    unmet: tuple[str, ...] = ()
    """Operators that the target lacks and that no kernel provider offers."""
