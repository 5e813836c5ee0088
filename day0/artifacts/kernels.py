"""KernelBundle: kernels built for a target, each with the evidence that it is right, and what an engine is given."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from day0.artifacts.base import Artifact, Frozen
from day0.verdict import Verdict

#: Which kernels a run uses: those that meet a gap, or beside them every accepted one that the engine has a place for.
KernelUsage = Literal["gaps", "accepted"]


#: The most elements that an index of 32 bits can tell apart.
MOST_ELEMENTS = 2**31 - 1


class Kernel(Frozen):
    name: str
    backend: str
    verdict: Verdict
    error: dict[str, Any]
    speedup: dict[str, Any]
    roofline: float | None
    digest: str
    chosen: str | None = None
    """Why this backend is the one that is used of its kernel; None: another one is, or none."""

    @property
    def elements(self) -> int | None:
        """The most elements that a tensor may have by what the kernel was accepted on; None: any number."""
        found: int | None = self.error.get("elements", MOST_ELEMENTS)
        return found


class GivenKernel(Frozen):
    """An accepted kernel that an engine is given."""

    name: str
    backend: str
    places: tuple[str, ...]
    """The engine's and torch's operators that it stands for, such as `vllm_ir::fused_add_rms_norm`."""


class EnginePlugin(Frozen):
    """What starts an engine with kernels: the bundle's tree on its Python path, and this."""

    kernels: tuple[GivenKernel, ...]


class KernelBundle(Artifact):
    kind: ClassVar[str] = "kernels"

    target: str
    kernels: tuple[Kernel, ...] = ()
    unmet: tuple[str, ...] = ()
    """Operators that the target lacks and that no kernel provider offers."""
    plugin: EnginePlugin | None = None
    """None: the engine is given no kernel."""
    unused: dict[str, str] = Field(default_factory=dict)
    """Accepted kernels that the engine is not given, and why."""
