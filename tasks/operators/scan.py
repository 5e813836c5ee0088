"""The operator scan: capture in a process of its own, look every operator up, name what the target lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from day0 import process
from day0.architecture.structure import Structure
from day0.artifacts.operators import Gap, OperatorReport, Phase
from day0.verdict import Check, Verdict
from tasks.operators.capturing import CaptureEndless, CaptureUnreadable, run_capture, run_own_code
from tasks.operators.corrections import corrections, off_by, structure_or_none
from tasks.operators.evidence import UNMEASURED, Evidence, measured_evidence
from tasks.operators.formulas import from_formulas
from tasks.operators.fusions import fused_patterns
from tasks.operators.ranking import Rates, apart_of, first_token, gaps_of, ranked_phase, reach_of, slow_of
from tasks.operators.records import Capture, Resembling
from tasks.operators.resemblance import MOST_OFF, differs
from tasks.operators.settings import OperatorSettings
from tasks.operators.support.rank import support_for

#: FLOPs per byte that weigh work and traffic where neither the target nor its operator list tells.
DEFAULT_BALANCE = 10.0


def scan(config: Mapping[str, Any], settings: OperatorSettings, code: Path | None = None) -> OperatorReport:
    """What the model of this config.json calls, and whether the target has it.

    Args:
        code: the folder of a release whose own code is to be run, in a container, instead of the library's.

    Raises:
        EvidenceMissing: torch or transformers are not installed, or the folder has no code.
        Unavailable: code is to be run, and there is no Docker daemon or no image.
        StageTimeout, Cancelled: the stage's time was up.
    """
    try:
        capture = run_own_code(config, settings, code) if code else run_capture(config, settings)
    except process.ProcessFailed as error:
        return _nothing(settings, Verdict.INCONCLUSIVE, f"the model could not be traced: {error}")
    except CaptureEndless as error:
        return _nothing(settings, Verdict.INCONCLUSIVE, f"the model could not be traced: {error}")
    except CaptureUnreadable as error:
        return _nothing(settings, Verdict.FAIL, str(error))
    if capture.unsupported:
        return _by_formulas(config, settings, capture, capture.unsupported)
    if capture.resembles:
        passes = _passes(settings)
        if why := differs(structure_or_none(config), capture, passes):
            tried = (
                f"transformers {capture.packages['transformers']} does not know the model type "
                f"{config.get('model_type')!r}, and it is not taken for the {capture.resembles.model_type} that it "
                f"resembles: {why}"
            )
            return _by_formulas(config, settings, capture, tried)
    return judge(config, settings, capture, evidence=measured_evidence(settings, capture))


def _passes(settings: OperatorSettings) -> dict[str, tuple[int, int]]:
    """New tokens and cached ones of each phase of the language model."""
    return {"prefill": (settings.prompt, 0), "decode": (1, settings.context)}


def _by_formulas(config: Mapping[str, Any], settings: OperatorSettings, capture: Capture, why: str) -> OperatorReport:
    """Of a model that the library does not know, what its family's work needs."""
    structure = structure_or_none(config)
    if structure is None:
        reason = f"{why}, and no family describes it: its operators were not scanned"
        return _nothing(settings, Verdict.INCONCLUSIVE, reason)
    needed = from_formulas(structure, settings, capture, why)
    return judge(config, settings, needed, evidence=measured_evidence(settings, needed))


def judge(
    config: Mapping[str, Any], settings: OperatorSettings, capture: Capture, evidence: Evidence = UNMEASURED
) -> OperatorReport:
    """The report on a capture: costs, shares, statuses, gaps. `evidence`: what was run on the target's device."""
    empty = [name for name in ("prefill", "decode") if not capture.phases.get(name)]
    if empty:
        return _nothing(settings, Verdict.FAIL, f"the trace of {' and '.join(empty)} captured no operator at all")
    rates = rates_of(settings)
    device = evidence.record.hardware or "the device"
    support = support_for(settings.operators, capture, evidence.measured, device=device)
    structure = structure_or_none(config)
    passes = _passes(settings)
    corrected = corrections(structure, capture, passes)
    phases = {
        name: ranked_phase(found, capture.before.get(name, ()), capture, support, rates).model_copy(
            update={"corrections": corrected.get(name, ())}
        )
        for name, found in capture.phases.items()
    }
    gaps, apart = gaps_of(phases), apart_of(phases)
    checks = [_traced(config, capture, settings, phases, rates), _covered(settings.target, phases, gaps, apart)]
    if evidence.check is not None:
        checks.append(evidence.check)
    if capture.resembles:
        checks.append(_resembles(capture.resembles))
    elif capture.read_as:
        how = f"traced as a {capture.read_as}, whose class its config names"
        checks.append(_agrees(how, structure, phases, passes))
    elif capture.source == "code" and structure is not None:
        checks.append(_agrees("traced by the release's own code", structure, phases, passes))
    if config.get("vision_config") is not None and "vision" not in phases:
        reason = "the model has a vision tower, and only its language model was traced"
        checks.append(Check(name="vision", verdict=Verdict.INCONCLUSIVE, reason=reason))
    if capture.graph is not None and capture.graph.failed:
        checks.append(Check(name="graph", verdict=Verdict.INCONCLUSIVE, reason=capture.graph.failed))
    return OperatorReport(
        target=settings.target,
        prompt=settings.prompt,
        context=settings.context,
        phases=phases,
        gaps=gaps,
        checks=tuple(checks),
        source=capture.source,
        model=str(config.get("model_type") or ""),
        measurement=evidence.record,
        slow=slow_of(phases),
        apart=apart,
        reach=reach_of(phases),
        first_token=first_token(capture.phases["prefill"], phases["prefill"]),
        graph=fused_patterns(capture.graph, settings.fused) if capture.graph else None,
    )


def _resembles(by: Resembling) -> Check:
    """Of a likeness that `differs` has found to hold. What the model calls itself was not seen all the same."""
    reason = (
        f"traced as a {by.model_type}, which it resembles: {by.because}. Its layers and parameters are the same, and "
        f"its work is within {MOST_OFF:.0%} of its own family's formulas; what its code does otherwise with single "
        "elements is not known: --own-code runs it"
    )
    return Check(name="resemblance", verdict=Verdict.INCONCLUSIVE, reason=reason)


def _agrees(
    how: str, structure: Structure | None, phases: Mapping[str, Phase], passes: Mapping[str, tuple[int, int]]
) -> Check:
    """Whether what was built is the model that the config describes: its work is that of its family's formulas."""
    if structure is None:
        reason = f"{how}, and no family describes it to tell whether it is one"
        return Check(name="formulas", verdict=Verdict.INCONCLUSIVE, reason=reason)
    flops = {name: phase.flops + sum(c.flops for c in phase.corrections) for name, phase in phases.items()}
    off = off_by(structure, flops, passes)
    far = max(map(abs, off.values()))
    good = far <= MOST_OFF
    reason = (
        f"{how}: its work is within {far:.2%} of its family's formulas"
        if good
        else f"{how}, but its work is {far:.1%} off its family's formulas"
    )
    return Check(
        name="formulas", verdict=Verdict.PASS if good else Verdict.INCONCLUSIVE, reason=reason, measured={"off": off}
    )


def rates_of(settings: OperatorSettings) -> Rates:
    """The target's roofline, or what weighs work against traffic where its config has no rates."""
    balance = settings.flops_per_byte or settings.operators.flops_per_byte or DEFAULT_BALANCE
    return Rates(balance, settings.rates, settings.bandwidth)


def _traced(
    config: Mapping[str, Any], capture: Capture, settings: OperatorSettings, phases: Mapping[str, Phase], rates: Rates
) -> Check:
    distinct = {o.name for phase in phases.values() for o in phase.operators}
    unknown = sorted({o.name for p in phases.values() for o in p.operators if o.flops is None or o.bytes is None})
    calls = {name: sum(o.calls for o in phase.operators) for name, phase in phases.items()}
    reason = (
        f"{len(distinct)} operators: {calls['prefill']:,} calls to prefill {settings.prompt} tokens, "
        f"{calls['decode']:,} to decode one at {settings.context}; "
    )
    if capture.source == "formulas":
        reason += f"from the formulas of the model's family, not traced: {capture.why}"
    else:
        how = "all" if capture.traced_layers == capture.layers else f"{capture.traced_layers}, repeated to"
        reason += f"traced {how} {capture.layers} layers"
        if capture.source == "code":
            reason += f" of the release's own code, on transformers {capture.packages.get('transformers')}"
    if is_quantised(config):
        reason += f"; its weights are quantised, and the operators are those of the same model in {capture.dtype}"
    if unknown:
        reason += f"; without a cost formula, and so missing in the totals: {', '.join(unknown)}"
    for note in capture.notes:
        reason += f"; {note}"
    for name, phase in phases.items():
        for correction in phase.corrections:
            reason += f"; {correction.what} in {name}, by {correction.flops:+.3g} FLOP: {correction.reason}"
    measured = {
        "layers": capture.layers,
        "traced_layers": capture.traced_layers,
        "dtype": capture.dtype,
        "packages": capture.packages,
        "flops_per_byte": rates.balance,
        "bandwidth": rates.bandwidth,
        "unknown_costs": unknown,
        "native": {name: phase.native for name, phase in phases.items()},
        "source": capture.source,
    }
    # What formulas say a model needs is no evidence of what it calls.
    verdict = Verdict.INCONCLUSIVE if capture.source == "formulas" else Verdict.PASS
    return Check(name="trace", verdict=verdict, reason=reason, measured=measured)


def is_quantised(config: Mapping[str, Any]) -> bool:
    """Whether a config, or one of its models', says how weights are quantised."""
    return "quantization_config" in config or any(
        is_quantised(value) for value in config.values() if isinstance(value, Mapping)
    )


_GAPS = ("missing", "fallback", "unknown")


def _covered(target: str, phases: Mapping[str, Phase], gaps: tuple[Gap, ...], apart: tuple[Gap, ...]) -> Check:
    """Gaps do not fail the scan, which has found them: the kernels stage must meet them. What is not known does."""
    distinct = len({o.name for phase in phases.values() for o in phase.operators})
    wrong = [g.name for g in gaps if g.measured == "wrong"]
    named = {s: [g.name for g in gaps if g.status == s and g.name not in wrong] for s in _GAPS}
    named = {"wrong": wrong, **named}
    shares = {gap.name: gap.share for gap in apart}
    part = {name: "an unknown part" if share is None else f"{share:.0%}" for name, share in shares.items()}
    only_apart = ", ".join(f"{name} ({part[name]} of a phase's time as one kernel)" for name in shares)
    only_apart = f"; without a kernel of its own, taken apart: {only_apart}" if apart else ""
    if not gaps:
        return Check(
            name="coverage",
            verdict=Verdict.PASS,
            reason=f"{target} has all {distinct} operators{only_apart}",
            measured={"operators": distinct, "taken_apart": shares},
        )
    why = {o.via for phase in phases.values() for o in phase.operators if o.status == "unknown" and o.via}
    unknown = f"not known ({'; '.join(sorted(why))})" if why else "not known"
    words = {
        "wrong": "computed wrongly",
        "missing": "missing",
        "fallback": "run on the CPU instead",
        "unknown": unknown,
    }
    found = "; ".join(f"{words[s]}: {', '.join(names)}" for s, names in named.items() if names)
    return Check(
        name="coverage",
        verdict=Verdict.INCONCLUSIVE if named["unknown"] else Verdict.PASS,
        reason=f"{len(gaps)} of {distinct} operators are not shown to be on {target}: {found}{only_apart}",
        measured={"operators": distinct, "taken_apart": shares, **named},
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
