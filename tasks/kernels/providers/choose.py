"""Which of a kernel's accepted backends is used: the fastest, as timed side by side in one run."""

from __future__ import annotations

from collections.abc import Sequence

from day0.artifacts.kernels import Kernel
from day0.verdict import Verdict

#: Of backends that are this close to the fastest, the most wanted one is taken.
_CLOSE = 0.98


def best(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """One accepted backend of each kernel that has any, `chosen` saying why. `kernels` are in the target's order, the
    most wanted last: it decides where there is no timing, or none of all in one run.
    """
    return tuple(kernel for kernel in marked(kernels) if kernel.chosen is not None)


def marked(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """All of them, those that are used with the reason in `chosen`."""
    reasons: dict[tuple[str, str], str] = {}
    for name in dict.fromkeys(kernel.name for kernel in kernels):
        accepted = [k for k in kernels if k.name == name and k.verdict is Verdict.PASS]
        if accepted:
            chosen, reason = _fastest(accepted)
            reasons[name, chosen.backend] = reason
    return tuple(k.model_copy(update={"chosen": reasons.get((k.name, k.backend))}) for k in kernels)


def _fastest(accepted: Sequence[Kernel]) -> tuple[Kernel, str]:
    if len(accepted) == 1:
        return accepted[0], "the only accepted one"
    runs = {kernel.speedup.get("run") for kernel in accepted}
    if None in runs or len(runs) > 1:
        return accepted[-1], "the most wanted of the target's; day0 kernels bench times them side by side"
    top = max(_speed(kernel) for kernel in accepted)
    chosen = [kernel for kernel in accepted if _speed(kernel) >= _CLOSE * top][-1]
    others = ", ".join(f"{k.backend} {_speed(k):.2f}" for k in accepted if k is not chosen)
    return chosen, f"{_speed(chosen):.2f} times as fast as eager, in the same run {others}"


def _speed(kernel: Kernel) -> float:
    return float(kernel.speedup["eager"])
