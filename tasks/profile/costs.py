"""What a model costs to run: FLOPs and bytes by class, the roofline of a target, and what kind of load weighs most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from day0.architecture.parallel import Sizes
from day0.architecture.roofline import Bound, bounds, hotspots, least_seconds
from day0.architecture.work import ClassWork, RankWork, Step, WorkModel
from day0.target import Target

WHOLE = Sizes(1, 1)

#: Loads that the sensitivity is stated for: (prompt, answer) in shares of the context.
LOADS = {
    "long prompt, short answer": (0.95, 0.05),
    "half and half": (0.5, 0.5),
    "short prompt, long answer": (0.05, 0.95),
}


def costs(model: WorkModel, context: int, concurrency: int, target: Target | None) -> dict[str, Any]:
    """Work of a prefill of `context` tokens and of a decode step at that context, for `concurrency` sequences.

    With a target also the roofline of one of its devices (as if the model lay on it whole), by class.
    """
    steps = {"prefill": Step(concurrency, context, 0), "decode": Step(concurrency, 1, context - 1)}
    works = {phase: model.rank_work(step, WHOLE) for phase, step in steps.items()}
    found: dict[str, Any] = {phase: _phase(work, _tokens(phase, steps[phase])) for phase, work in works.items()}
    if target is not None:
        for phase, work in works.items():
            found[phase]["roofline"] = _roofline(work.classes, target)
    found["sensitivity"] = sensitivity(model, context, target)
    return found


def sensitivity(model: WorkModel, context: int, target: Target | None) -> list[dict[str, Any]]:
    """For one sequence of `context` tokens, how the work divides over prefill and decode as answers grow.

    Decode steps are taken at the mean of their contexts: what they cost is linear in it but for window edges.
    """
    rows = []
    for name, (prompt_share, answer_share) in LOADS.items():
        prompt, answer = max(1, int(context * prompt_share)), max(1, int(context * answer_share))
        prefill = model.rank_work(Step(1, prompt, 0), WHOLE)
        decode = model.rank_work(Step(1, 1, prompt + answer // 2), WHOLE)
        row: dict[str, Any] = {
            "load": name,
            "prompt": prompt,
            "answer": answer,
            "flops": {"prefill": prefill.flops, "decode": answer * decode.flops},
            "bytes": {"prefill": prefill.bytes, "decode": answer * decode.bytes},
        }
        if target is not None:
            row["least_seconds"] = {
                "prefill": least_seconds(_bounds(prefill.classes, target)),
                "decode": _times(answer, least_seconds(_bounds(decode.classes, target))),
            }
        rows.append(row)
    return rows


def _phase(work: RankWork, tokens: int) -> dict[str, Any]:
    by_class: dict[str, dict[str, Any]] = {}
    for part in work.classes:
        row = by_class.setdefault(part.name, {"flops": 0.0, "bytes": 0.0, "dtypes": []})
        row["flops"] += part.flops
        row["bytes"] += part.bytes
        row["dtypes"] = sorted({*row["dtypes"], part.dtype})
    return {
        "tokens": tokens,
        "flops": work.flops,
        "bytes": work.bytes,
        "flops_per_byte": work.flops / work.bytes,
        "flops_per_token": work.flops / tokens,
        "by_class": by_class,
    }


def _roofline(classes: Sequence[ClassWork], target: Target) -> dict[str, Any]:
    found = _bounds(classes, target)
    slowest = max((bound for bound in found if bound.seconds is not None), key=lambda b: b.seconds or 0.0, default=None)
    rate, bandwidth = target.flops.get("bfloat16"), target.bandwidth
    return {
        "ridge": rate.value / bandwidth.value if rate and bandwidth else None,
        "least_seconds": least_seconds(found),
        "bound": None if slowest is None else slowest.name,
        "bound_by": None if slowest is None else slowest.by,
        "hotspots": [_row(bound) for bound in hotspots(found)],
        "classes": [_row(bound) for bound in found],
    }


def _bounds(classes: Sequence[ClassWork], target: Target) -> tuple[Bound, ...]:
    rates: Mapping[str, float] = {dtype: rate.value for dtype, rate in target.flops.items()}
    return bounds(classes, rates, target.bandwidth.value if target.bandwidth else None)


def _row(bound: Bound) -> dict[str, Any]:
    return {
        "class": bound.name,
        "dtype": bound.dtype,
        "flops": bound.flops,
        "bytes": bound.bytes,
        "flops_per_byte": bound.intensity,
        "seconds": bound.seconds,
        "by": bound.by,
    }


def _tokens(phase: str, step: Step) -> int:
    return step.tokens if phase == "prefill" else step.sequences


def _times(count: int, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds
