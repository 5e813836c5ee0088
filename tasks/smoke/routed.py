"""Models that choose experts: where two are nearly equal, rounding changes the choice.

A position where that happens is far off, in the engine or in the reference at the same precision, and decides whatever
few positions can decide, though nothing is wrong: in a random Qwen3-MoE one position of 36 had an error of 0.79 nats,
which made the mean 3.2 times the reference's own where the median was 0.9 times; in a random DeepSeek-V3 the 99th
percentile of both was above a nat. At float32 the choice is the same, and any fault is seen. So such a number fails
only if float32 does not bear out that it is rounding; the median and the mean error in nats are held to their limits as
with any model.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from day0.architecture.structure import structure_of
from day0.checkpoint import read_config
from day0.errors import InputError
from day0.verdict import Check, Verdict

#: Checks that few positions decide.
SENSITIVE = tuple(
    f"parity.{name}"
    for name in ("ratio", "prompt_ratio", "decode_ratio", "p99_error", "top1_agreement", "greedy_agreement")
)


def chooses_experts(folder: Path) -> bool:
    """Whether the model has routed experts; of a model that no family describes, no."""
    try:
        return bool(structure_of(read_config(folder), str(folder)).routing)
    except InputError:
        return False


def may_be_rounding(checks: Iterable[Check]) -> bool:
    """Whether what failed, if anything, may be a choice of experts by rounding."""
    return all(check.name in SENSITIVE for check in checks if check.verdict is Verdict.FAIL)


def settled(checks: Iterable[Check], exact: Check) -> tuple[Check, ...]:
    """The checks; those that failed and may be rounding, by what was found at float32: `exact`."""
    return tuple(_settled(check, exact) for check in checks)


def _settled(check: Check, exact: Check) -> Check:
    if check.name not in SENSITIVE or check.verdict is not Verdict.FAIL or exact.verdict is Verdict.FAIL:
        return check
    if exact.verdict is Verdict.PASS:
        verdict, why = Verdict.PASS, "the choice of experts by rounding, for at float32 there is no such error"
    else:
        verdict, why = Verdict.INCONCLUSIVE, "without float32 it cannot be told from a choice of experts by rounding"
    return check.model_copy(update={"verdict": verdict, "reason": f"{check.reason}: {why}"})
