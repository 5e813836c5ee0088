"""From the gaps of an operator scan to kernels."""

from __future__ import annotations

from day0.artifacts.kernels import Kernel, KernelBundle
from day0.artifacts.operators import OperatorReport
from day0.verdict import Check, Verdict


def provided(target: str) -> tuple[Kernel, ...]:
    """The kernels that can be had for a target: none yet, for any target."""
    return ()


def fill_gaps(operators: OperatorReport) -> KernelBundle:
    """A bundle that meets the gaps; `unmet` names the operators for which there is no kernel."""
    have = {kernel.name for kernel in provided(operators.target)}
    lacking = tuple(g.name for g in operators.gaps if g.status in ("missing", "fallback") and g.name not in have)
    return KernelBundle(target=operators.target, unmet=lacking, checks=(_judge(operators, lacking),))


def _judge(operators: OperatorReport, lacking: tuple[str, ...]) -> Check:
    called = {operator.name for phase in operators.phases.values() for operator in phase.operators}
    if lacking:
        named = ", ".join(f"{g.name} ({g.status})" for g in operators.gaps if g.name in lacking)
        reason = (
            f"{operators.target} lacks {len(lacking)} of {len(called)} operators, and no kernel is provided: {named}"
        )
        return Check(name="gaps", verdict=Verdict.FAIL, reason=reason)
    if not called or not operators.verdict.good:
        reason = f"what {operators.target} lacks is not known: {operators.reason}"
        return Check(name="gaps", verdict=Verdict.INCONCLUSIVE, reason=reason)
    reason = f"{operators.target} lacks none of the {len(called)} operators that the model calls"
    return Check(name="gaps", verdict=Verdict.SKIPPED, reason=reason)
