"""Operators by their share of a phase's least time on the target, and which of them to write first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from day0.architecture.roofline import arithmetic_dtype
from day0.artifacts.operators import (
    Gap,
    GraphSeverity,
    Need,
    Operator,
    Phase,
    Reach,
    Signature,
    Status,
    Tensor,
)
from tasks.operators.costs import work_class
from tasks.operators.records import Capture, CapturedCall, CapturedOperator, TensorSpec
from tasks.operators.support.composites import computing
from tasks.operators.support.findings import Finding
from tasks.operators.support.rank import OperatorSupport

#: Signatures that a report holds of an operator in a phase.
MOST_SIGNATURES = 8

#: Shares of a phase's time for which the report says what brings the target's own kernels there.
LEVELS = (0.8, 0.95, 1.0)

#: Share of a phase's time from which an operator that is only there taken apart is named.
WORTH_NAMING = 0.01

ADVICE = {
    "missing": "nothing computes it there: it needs a kernel",
    "fallback": "each call copies its operands to the CPU and back: it needs a kernel to be fast",
    "unknown": "run the scan where it can be told, or complete the target's operator list",
}


class Costed(Protocol):
    @property
    def flops(self) -> float | None: ...
    @property
    def bytes(self) -> float | None: ...


@dataclass(frozen=True)
class Rates:
    """A target's roofline.

    Without the target's rates, work is weighed against traffic by `balance`, FLOPs in the time of moving one byte.
    """

    balance: float
    flops: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float | None = None

    @property
    def known(self) -> bool:
        return self.bandwidth is not None and bool(self.flops)

    def time(self, cost: Costed, dtype: str | None) -> float | None:
        """Least seconds, or where rates are not known bytes' time; None where the cost is not known."""
        if cost.flops is None or cost.bytes is None:
            return None
        if self.bandwidth is None or not self.flops:
            return max(cost.flops / self.balance, cost.bytes)
        rate = self.flops.get(arithmetic_dtype(dtype or "bfloat16", self.flops)) or max(self.flops.values())
        return max(cost.flops / rate, cost.bytes / self.bandwidth)


def least_time(operator: CapturedOperator, rates: Rates) -> float | None:
    """Of all calls: each waits for the longer of computing and moving."""
    calls: Sequence[CapturedCall | CapturedOperator] = operator.by_signature or (operator,)
    times = [rates.time(call, call.dtype if isinstance(call, CapturedCall) else None) for call in calls]
    return None if None in times else sum(time for time in times if time is not None)


def ranked_phase(
    found: Iterable[CapturedOperator],
    before: Iterable[CapturedOperator],
    capture: Capture,
    support: OperatorSupport,
    rates: Rates,
) -> Phase:
    """The operators of a phase by falling share of its least time."""
    found = tuple(found)
    times = {o.name: least_time(o, rates) for o in found}
    whole = sum(time for time in times.values() if time is not None)
    operators = [_operator(o, times[o.name], whole, support, rates) for o in found]
    operators.sort(key=lambda o: (-or_most(o.share), -o.calls, o.name))
    names = {o.name for o in found}
    composites = (o for o in before if o.name in capture.parts and o.name not in names)
    own = sum((o.share or 0) - gap_share(o) for o in operators if not o.apart)
    apart = sum(o.share or 0 for o in operators if o.apart)
    return Phase(
        operators=tuple(operators),
        flops=sum(o.flops or 0 for o in found),
        bytes=sum(o.bytes or 0 for o in found),
        seconds=whole if rates.known else None,
        native=min(1.0, own) if whole else None,
        composite=min(1.0, apart) if whole else None,
        composites=tuple(_operator(o, None, 0, support, rates) for o in composites),
    )


def _operator(
    o: CapturedOperator, time: float | None, whole: float, support: OperatorSupport, rates: Rates
) -> Operator:
    arithmetic = sorted({call.dtype for call in o.by_signature if call.dtype is not None})
    found = support.support(o.name, arithmetic)
    evidence = found.evidence
    lacking: tuple[str, ...] = ()
    if not is_there(found.status):
        lacking = tuple(d for d in arithmetic if not is_there(support.support(o.name, [d]).status))
    if len(lacking) == len(arithmetic) or None in (times := [rates.time(c, c.dtype) for c in o.by_signature]):
        lacking, times = (), []
    lacked = sum(t or 0 for t, c in zip(times, o.by_signature, strict=False) if c.dtype in lacking)
    return Operator(
        name=o.name,
        calls=o.calls,
        flops=o.flops,
        bytes=o.bytes,
        share=time / whole if time is not None and whole else None,
        status=found.status,
        via=found.via,
        seconds=time if rates.known else None,
        lacking=lacking,
        lacking_share=lacked / whole if lacking and whole else None,
        apart=found.apart,
        graph="breaks" if found.reads_host else graph_severity(o.name, found.status),
        evidence=_evidence(evidence) if evidence else None,
        measured=next((f.outcome for f in found.findings if f.kind == "measured"), None),
        conflicts=found.conflicts,
        notes=found.notes,
        dtypes=tuple(sorted({t.dtype for call in o.by_signature for t in (*call.inputs, *call.outputs)})),
        signatures=_signatures(o, rates),
    )


def _evidence(finding: Finding) -> str:
    """With what was seen, where it was measured."""
    seen = f": {finding.detail}" if finding.kind == "measured" and finding.detail else ""
    return f"{finding.kind}: {finding.source}{seen}"


def _signatures(operator: CapturedOperator, rates: Rates) -> tuple[Signature, ...]:
    calls = sorted(operator.by_signature, key=lambda c: (-(rates.time(c, c.dtype) or 0), -c.calls))
    return tuple(
        Signature(inputs=_tensors(c.inputs), outputs=_tensors(c.outputs), calls=c.calls)
        for c in calls[:MOST_SIGNATURES]
    )


def _tensors(specs: Iterable[TensorSpec]) -> tuple[Tensor, ...]:
    return tuple(Tensor(dtype=s.dtype, shape=s.shape, stride=s.stride) for s in specs)


def is_there(status: str) -> bool:
    return status in ("native", "composite")


def graph_severity(name: str, status: Status) -> GraphSeverity:
    """What a call does to graph capture. A fallback copies to the host, which no captured graph can hold."""
    if work_class(name) == "host":
        return "breaks"
    return {"native": "captured", "composite": "captured", "unknown": "unknown"}.get(status, "fails")  # type: ignore[return-value]


def gap_share(operator: Operator) -> float:
    """The share of the calls that the target lacks an operator for; 0 where it has it, or the share is not known."""
    if is_there(operator.status):
        return 0.0
    return operator.kernel_share or 0.0


def or_most(share: float | None) -> float:
    """For sorting: what is not known may be the most costly."""
    return 2.0 if share is None else share


def gaps_of(phases: Mapping[str, Phase]) -> tuple[Gap, ...]:
    """Operators that the target is not known to have, most costly first: by their largest share in a phase."""
    return _ranked(phases, lambda o: not is_there(o.status))


def slow_of(phases: Mapping[str, Phase]) -> tuple[Gap, ...]:
    """Operators that the target has and that were measured to be slow, most costly first."""
    return _ranked(phases, lambda o: is_there(o.status) and o.measured == "slow")


def apart_of(phases: Mapping[str, Phase]) -> tuple[Gap, ...]:
    """Operators that the target only has taken apart and that take a share worth naming, most costly first.

    They are there, so they are no gaps, but a kernel of their own may be worth most: a grouped product without one is a
    loop over the experts.
    """
    return tuple(gap for gap in _ranked(phases, lambda o: o.apart) if or_most(gap.share) >= WORTH_NAMING)


def _ranked(phases: Mapping[str, Phase], meant: Callable[[Operator], bool]) -> tuple[Gap, ...]:
    gaps: dict[str, Gap] = {}
    for phase, content in phases.items():
        for o in content.operators:
            if not meant(o):
                continue
            before = gaps.get(o.name)
            shares = [o.kernel_share] if before is None else [before.share, o.kernel_share]
            gaps[o.name] = Gap(
                name=o.name,
                status=o.status,
                phases=(*(before.phases if before else ()), phase),
                share=None if None in shares else max(share for share in shares if share is not None),
                advice=advice(o),
                work=work_class(o.name),
                graph=o.graph,
                measured=o.measured,
            )
    return tuple(sorted(gaps.values(), key=lambda gap: (-or_most(gap.share), gap.name)))


def advice(operator: Operator) -> str:
    """What to do about an operator that is not there."""
    if operator.measured == "wrong":
        return "the device computes it wrongly: it needs a kernel in its place"
    if operator.apart:
        runs = computing(operator.via or "")
        return f"it runs as {runs}, which takes longer than one kernel would: a kernel of its own may pay"
    if is_there(operator.status):
        return "it is there and slow: a kernel may pay"
    if operator.status == "unknown" and operator.via:
        return f"{operator.via}: {ADVICE['unknown']}"
    parts = operator.via if operator.via and "::" in operator.via else None
    only = f"for {', '.join(operator.lacking)} alone: " if operator.lacking else ""
    return only + ADVICE[operator.status] + (f"; what it lacks of its parts: {parts}" if parts else "")


def reach_of(phases: Mapping[str, Phase]) -> tuple[Reach, ...]:
    """For each phase and level, the fewest operators that bring the target's own kernels to that share of its time.

    What is only there taken apart is among them, as its share is of one kernel. Taking the most costly first is the
    shortest list, since shares add up. All of it needs every operator, those too that take no time or whose time is not
    known.
    """
    found = []
    for name, phase in phases.items():
        gaps = [o for o in phase.operators if not is_there(o.status) or o.apart]
        timed = [o for o in gaps if o.share is not None]
        timed.sort(key=lambda o: -(o.kernel_share or 0.0))
        for level in LEVELS:
            chosen: list[str] = []
            reached = phase.native or 0.0
            for o in timed:
                if reached >= level - 1e-9:
                    break
                chosen.append(o.name)
                reached += o.kernel_share or 0.0
            if level == 1.0:
                chosen = [o.name for o in timed] + [o.name for o in gaps if o.share is None]
            found.append(Reach(phase=name, share=level, operators=tuple(chosen)))
    return tuple(found)


def first_token(found: Iterable[CapturedOperator], phase: Phase) -> tuple[Need, ...]:
    """What a first token needs at all, in the order of first use. `phase` is the prefill, judged."""
    statuses = {o.name: o.status for o in phase.operators}
    return tuple(Need(name=o.name, status=statuses[o.name]) for o in found)
