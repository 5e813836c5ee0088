"""The operator scan: capture in a process of its own, look every operator up, name what the target lacks."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from day0 import home, process
from day0.artifacts.operators import Gap, Operator, OperatorReport, Phase
from day0.errors import EvidenceMissing
from day0.files import write_json
from day0.progress import report
from day0.verdict import Check, Verdict
from tasks.operators.records import Capture, CapturedOperator, CaptureRequest
from tasks.operators.settings import OperatorSettings
from tasks.operators.support.rank import OperatorSupport, support_for

#: FLOPs per byte that weigh work and traffic where neither the target nor its operator list tells.
DEFAULT_BALANCE = 10.0

ADVICE = {
    "missing": "nothing computes it there: it needs a kernel",
    "fallback": "each call copies its operands to the CPU and back: it needs a kernel to be fast",
    "unknown": "run the scan where it can be told, or complete the target's operator list",
}


def scan(config: Mapping[str, Any], settings: OperatorSettings) -> OperatorReport:
    """What the model of this config.json calls, and whether the target has it.

    Raises:
        EvidenceMissing: torch or transformers are not installed.
        StageTimeout, Cancelled: the stage's time was up.
    """
    try:
        capture = run_capture(config, settings)
    except process.ProcessFailed as error:
        return _nothing(settings, Verdict.INCONCLUSIVE, f"the model could not be traced: {error}")
    except CaptureUnreadable as error:
        return _nothing(settings, Verdict.FAIL, str(error))
    if capture.unsupported:
        return _nothing(settings, Verdict.INCONCLUSIVE, f"{capture.unsupported}: its operators were not scanned")
    return judge(config, settings, capture)


class CaptureUnreadable(Exception):
    """The capture ended well and left no answer, or not one that can be read."""


def run_capture(config: Mapping[str, Any], settings: OperatorSettings) -> Capture:
    """The capture of this model, made by a process of its own."""
    lacking = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if lacking:
        raise EvidenceMissing(
            f"the operator scan needs {' and '.join(lacking)}, which are not installed here: "
            "pip install 'day0[reference]'"
        )
    request = CaptureRequest(
        config=dict(config),
        prompt=settings.prompt,
        context=settings.context,
        dispatch_key=settings.operators.dispatch_key,
    )
    report("tracing the model")
    with tempfile.TemporaryDirectory(prefix="day0-operators-") as folder:
        asked, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(asked, request.to_json())
        command = [sys.executable, "-m", "tasks.operators.capture", str(asked), str(answer)]
        process.run(command, cwd=home.PROJECT, env=os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
        try:
            return Capture.model_validate_json(answer.read_bytes())
        except (OSError, ValidationError) as error:
            raise CaptureUnreadable(f"the trace left no answer that can be read: {error}") from error


def judge(config: Mapping[str, Any], settings: OperatorSettings, capture: Capture) -> OperatorReport:
    """The report on a capture: costs, shares, statuses, gaps."""
    empty = [name for name in ("prefill", "decode") if not capture.phases.get(name)]
    if empty:
        return _nothing(settings, Verdict.FAIL, f"the trace of {' and '.join(empty)} captured no operator at all")
    balance = settings.flops_per_byte or settings.operators.flops_per_byte or DEFAULT_BALANCE
    support = support_for(settings.operators, capture)
    phases = {name: _phase(found, support, balance) for name, found in capture.phases.items()}
    gaps = _gaps(phases)
    checks = [_traced(capture, settings, phases, balance), _covered(settings.target, phases, gaps)]
    if "vision_config" in config:
        reason = "the model has a vision tower, and only its language model was traced"
        checks.append(Check(name="vision", verdict=Verdict.INCONCLUSIVE, reason=reason))
    return OperatorReport(
        target=settings.target,
        prompt=settings.prompt,
        context=settings.context,
        phases=phases,
        gaps=gaps,
        checks=tuple(checks),
    )


def _phase(found: tuple[CapturedOperator, ...], support: OperatorSupport, balance: float) -> Phase:
    """Operators by falling share; a share is of the time that work and traffic take at best, in bytes' time."""
    seconds = {o.name: _least_time(o, balance) for o in found}
    whole = sum(time for time in seconds.values() if time is not None)
    operators = []
    for o in found:
        time = seconds[o.name]
        status, via = support.lookup(o.name)
        operators.append(
            Operator(
                name=o.name,
                calls=o.calls,
                flops=o.flops,
                bytes=o.bytes,
                share=time / whole if time is not None and whole else None,
                status=status,
                via=via,
            )
        )
    operators.sort(key=lambda o: (-_or_most(o.share), -o.calls, o.name))
    return Phase(
        operators=tuple(operators), flops=sum(o.flops or 0 for o in found), bytes=sum(o.bytes or 0 for o in found)
    )


def _least_time(operator: CapturedOperator, balance: float) -> float | None:
    if operator.flops is None or operator.bytes is None:
        return None
    return max(operator.flops / balance, operator.bytes)


def _or_most(share: float | None) -> float:
    """For sorting: what is not known may be the most costly."""
    return 2.0 if share is None else share


def _gaps(phases: Mapping[str, Phase]) -> tuple[Gap, ...]:
    """Operators that the target is not known to have, most costly first: by their largest share in a phase."""
    gaps: dict[str, Gap] = {}
    for phase, content in phases.items():
        for o in content.operators:
            if o.status in ("native", "composite"):
                continue
            before = gaps.get(o.name)
            shares = [o.share] if before is None else [before.share, o.share]
            gaps[o.name] = Gap(
                name=o.name,
                status=o.status,
                phases=(*(before.phases if before else ()), phase),
                share=None if None in shares else max(share for share in shares if share is not None),
                advice=_advice(o),
            )
    return tuple(sorted(gaps.values(), key=lambda gap: (-_or_most(gap.share), gap.name)))


def _advice(operator: Operator) -> str:
    if operator.status == "unknown" and operator.via:
        return f"{operator.via}: {ADVICE['unknown']}"
    parts = operator.via if operator.via and "::" in operator.via else None
    return ADVICE[operator.status] + (f"; what it lacks of its parts: {parts}" if parts else "")


def _traced(capture: Capture, settings: OperatorSettings, phases: Mapping[str, Phase], balance: float) -> Check:
    distinct = {o.name for phase in phases.values() for o in phase.operators}
    unknown = sorted({o.name for p in phases.values() for o in p.operators if o.flops is None or o.bytes is None})
    calls = {name: sum(o.calls for o in phase.operators) for name, phase in phases.items()}
    how = "all" if capture.traced_layers == capture.layers else f"{capture.traced_layers}, repeated to"
    reason = (
        f"{len(distinct)} operators: {calls['prefill']:,} calls to prefill {settings.prompt} tokens, "
        f"{calls['decode']:,} to decode one at {settings.context}; traced {how} {capture.layers} layers"
    )
    if unknown:
        reason += f"; without a cost formula, and so missing in the totals: {', '.join(unknown)}"
    measured = {
        "layers": capture.layers,
        "traced_layers": capture.traced_layers,
        "dtype": capture.dtype,
        "packages": capture.packages,
        "flops_per_byte": balance,
        "unknown_costs": unknown,
    }
    return Check(name="trace", verdict=Verdict.PASS, reason=reason, measured=measured)


def _covered(target: str, phases: Mapping[str, Phase], gaps: tuple[Gap, ...]) -> Check:
    """Gaps do not fail the scan, which has found them: the kernels stage must meet them. What is not known does."""
    distinct = len({o.name for phase in phases.values() for o in phase.operators})
    named = {s: [g.name for g in gaps if g.status == s] for s in ("missing", "fallback", "unknown")}
    if not gaps:
        return Check(
            name="coverage",
            verdict=Verdict.PASS,
            reason=f"{target} has all {distinct} operators",
            measured={"operators": distinct},
        )
    why = {o.via for phase in phases.values() for o in phase.operators if o.status == "unknown" and o.via}
    unknown = f"not known ({'; '.join(sorted(why))})" if why else "not known"
    words = {"missing": "missing", "fallback": "run on the CPU instead", "unknown": unknown}
    found = "; ".join(f"{words[s]}: {', '.join(names)}" for s, names in named.items() if names)
    return Check(
        name="coverage",
        verdict=Verdict.INCONCLUSIVE if named["unknown"] else Verdict.PASS,
        reason=f"{len(gaps)} of {distinct} operators are not shown to be on {target}: {found}",
        measured={"operators": distinct, **named},
    )


def _nothing(settings: OperatorSettings, verdict: Verdict, reason: str) -> OperatorReport:
    return OperatorReport(
        target=settings.target,
        prompt=settings.prompt,
        context=settings.context,
        phases={},
        gaps=(),
        checks=(Check(name="trace", verdict=verdict, reason=reason),),
    )
