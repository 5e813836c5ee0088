"""The stage `kernels`."""

from __future__ import annotations

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.operators import OperatorReport
from day0.stage import MINUTES, stage, workspace
from tasks.kernels.gaps import fill_gaps
from tasks.kernels.give import give
from tasks.kernels.settings import KernelSettings


@stage("kernels", version=3, retries=0, timeout=60 * MINUTES)
def kernels(operators: OperatorReport, settings: KernelSettings) -> KernelBundle:
    """Meet the operators that the target lacks with kernels, or say that it lacks none; what the engine is given."""
    return give(fill_gaps(operators), operators, settings.use, workspace)
