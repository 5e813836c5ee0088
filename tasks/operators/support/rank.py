"""The three kinds of evidence together: the best that tells decides, and what says otherwise is named."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping

from day0.artifacts.operators import Status
from day0.target_operators import TargetOperators
from tasks.operators.lists.model import OperatorList, load_list
from tasks.operators.records import EXPLICIT, IMPLICIT, Capture, Measured, Registration
from tasks.operators.support.composites import Composite, choice_of, is_several, made_of
from tasks.operators.support.findings import Finding, Kind, Support, reached
from tasks.operators.support.listed import Listed
from tasks.operators.support.measured import Measurements
from tasks.operators.support.registered import NOWHERE, Registered

#: Keys with lists of their own kernels, to say who alone has an operator.
ELSEWHERE = {"CUDA": "torch-cuda", "MPS": "torch-mps"}


def support_for(
    operators: TargetOperators,
    capture: Capture,
    measured: Iterable[Measured] = (),
    *,
    lists: Mapping[str, OperatorList] | None = None,
    device: str = "the device",
) -> OperatorSupport:
    """What a target has, for the operators of a capture.

    Args:
        operators: the target's configs/operators/NAME.yaml.
        measured: what was run on the target's device, where it was.
        device: what that calls itself.
        lists: instead of those that `operators` names; for tests.

    Raises:
        InputError: a list that `operators` names is not there, or is malformed.
    """
    return OperatorSupport(operators, capture, measured, lists, device)


class OperatorSupport:
    """A target's operators."""

    def __init__(
        self,
        operators: TargetOperators,
        capture: Capture,
        measured: Iterable[Measured] = (),
        lists: Mapping[str, OperatorList] | None = None,
        device: str = "the device",
    ) -> None:
        self.operators = operators
        self.registrations: Mapping[str, Registration] = capture.registrations
        self.parts = capture.parts
        self.measured = Measurements(measured, f"on {device}")
        self.registered = Registered(operators, capture)
        self.listed = Listed(operators, capture.registrations, lists)
        self._asked: list[str] = []
        self._list = functools.cache(load_list)

    def lookup(self, overload: str) -> tuple[Status, str | None]:
        """The status of an overload, and `via`: see Finding."""
        support = self.support(overload)
        return support.status, support.via

    def support(self, overload: str, dtypes: Collection[str] = ()) -> Support:
        """Whether the target has the overload, by which evidence, and what contradicts it.

        Args:
            dtypes: of the arithmetic that is asked of it, by torch's names (`bfloat16`); empty: not known.
        """
        found = [
            self.measured.find(overload),
            self._by("registered", overload, dtypes),
            self._by("listed", overload, dtypes),
        ]
        findings = tuple(finding for finding in found if finding is not None)
        evidence = next((finding for finding in findings if finding.status != "unknown"), None)
        status: Status = "unknown"
        if evidence is not None:
            status, via = evidence.status, self._via(evidence, findings)
        else:
            evidence = next((finding for finding in findings if finding.via), None)
            via = (evidence.via if evidence else None) or self._why_unknown()
        if status == "native" and evidence and evidence.kind == "measured":
            # Run as a whole it cannot be told from its parts; what is registered or listed tells.
            status = next((f.status for f in findings if f is not evidence and reached(f.status) == "there"), "native")
        doubts = self.listed.doubted(overload, dtypes)
        made = next((f for f in findings if f.status == "composite"), None) if status == "composite" else None
        return Support(
            status=status,
            via=via,
            evidence=evidence,
            findings=findings,
            conflicts=(*_conflicts(overload, evidence, findings), *doubts),
            notes=self._notes(overload, status),
            apart=made is not None and made.apart,
            reads_host=made is not None and made.reads_host,
        )

    def _by(self, kind: Kind, overload: str, dtypes: Collection[str]) -> Finding | None:
        """What the dispatcher, or the lists, say: a kernel, or what else becomes of it. None: they are silent.

        What is composite is so in every torch, by the registrations of the one that made the capture.
        """
        if kind == "registered" and self.registered.unreadable:
            return None
        if kind == "listed" and self.listed.empty:
            return None
        source = self.registered.source if kind == "registered" else self.listed.source
        kernel = self.registered.kernel(overload) if kind == "registered" else self.listed.kernel(overload, dtypes)
        if kernel and kernel.status not in ("missing", "unknown"):
            return kernel
        registration = self.registrations.get(overload, NOWHERE)
        if EXPLICIT in registration.keys:
            return self._composite(kind, overload, dtypes, source, made_of(overload, self.operators.dispatch_key))
        chosen = [one for one in choice_of(overload, self.operators.dispatch_key) if self._is_native(kind, one, dtypes)]
        if chosen:
            return Finding(kind=kind, status="composite", via=" or ".join(chosen), source=source)
        if IMPLICIT in registration.keys:
            return self._composite(kind, overload, dtypes, source, Composite(parts=self._decomposed(overload)))
        if kernel and kernel.status == "unknown":
            return kernel
        detail = kernel.detail if kernel else None
        if kind == "listed" and not kernel and not self.operators.complete:
            return Finding(kind=kind, status="unknown", via="not listed, and the list is not complete", source=source)
        if self.operators.fallback and self._on_cpu(registration):
            return Finding(kind=kind, status="fallback", via=self.operators.fallback, source=source, detail=detail)
        return Finding(kind=kind, status="missing", source=source, detail=detail)

    def _is_native(self, kind: Kind, overload: str, dtypes: Collection[str]) -> bool:
        measured = self.measured.find(overload)
        if measured is not None:
            return measured.status == "native"
        found = self.registered.kernel(overload) if kind == "registered" else self.listed.kernel(overload, dtypes)
        return found is not None and found.status == "native"

    def _decomposed(self, overload: str) -> tuple[str, ...]:
        """What the capture saw an operator become, on this device or on any."""
        by_device = self.parts.get(overload, {})
        return by_device.get(self.operators.dispatch_key or "", by_device.get("decomposed", ()))

    def _composite(
        self, kind: Kind, overload: str, dtypes: Collection[str], source: str, made: Composite | None
    ) -> Finding:
        """As good as the worst of what the operator becomes; `via` names these parts."""
        make = functools.partial(Finding, kind=kind, source=source)
        if made is None:
            return make(status="composite", via=EXPLICIT)
        if overload in self._asked:
            return make(status="unknown", via=f"{overload} becomes itself")
        self._asked.append(overload)
        try:
            found = {part: self.support(part, dtypes) for part in made.parts}
        finally:
            self._asked.pop()
        lacks: tuple[Status, ...] = ("missing", "unknown", "fallback")
        for status in lacks:
            if lacking := [part for part, its in found.items() if its.status == status]:
                return make(status=status, via=", ".join(lacking))
        parts = ", ".join(made.parts) or IMPLICIT
        return make(
            status="composite",
            via=f"{parts} {made.each}" if made.each else parts,
            apart=bool(made.each) or is_several(made.parts) or any(its.apart for its in found.values()),
            reads_host=made.reads_host or any(its.reads_host for its in found.values()),
        )

    def _on_cpu(self, registration: Registration) -> bool:
        delegate = self.registrations.get(registration.delegate or "", NOWHERE)
        return "CPU" in {*registration.keys, *delegate.keys}

    def _via(self, evidence: Finding, findings: tuple[Finding, ...]) -> str | None:
        """Of the evidence, or of what agrees with it and can tell."""
        agreeing = (f.via for f in findings if f.via and reached(f.status) == reached(evidence.status))
        return evidence.via or next(agreeing, None)

    def _why_unknown(self) -> str:
        reasons = [self.registered.unreadable or ""]
        if self.listed.empty:
            reasons.append(f"no list of its operators is known: {self.operators.source}")
        return "; ".join(reason for reason in reasons if reason)

    def _notes(self, overload: str, status: Status) -> tuple[str, ...]:
        if status == "composite" and self.operators.dispatch_key != "CUDA" and self._list("torch-cuda").find(overload):
            return ("made of other operators here, where CUDA has a kernel of its own",)
        if reached(status) == "there":
            return ()
        notes = list(self.listed.offered(overload))
        if status == "fallback" and self.operators.graph_capture:
            notes.append(f"no graph with it can be captured ({self.operators.graph_capture})")
        keys = self.registrations.get(overload, NOWHERE).keys
        if overload.startswith("aten::") and not {"CPU", EXPLICIT, IMPLICIT} & set(keys):
            only = [key for key, its in ELSEWHERE.items() if self._list(its).find(overload)]
            if only and self.operators.dispatch_key not in only and not self._list("torch-cpu").find(overload):
                notes.append(f"of torch's own backends only {' and '.join(only)} has a kernel of it")
        return tuple(notes)


def _conflicts(overload: str, evidence: Finding | None, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """What weaker evidence says otherwise."""
    if evidence is None:
        return ()
    others = [f for f in findings if f is not evidence and f.status != "unknown"]
    return tuple(
        f"{overload} is {evidence.says()}; but {other.says()}"
        for other in others
        if reached(other.status) != reached(evidence.status)
    )
