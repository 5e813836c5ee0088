"""The scan's best evidence: what the target's device, where it is here, does with the model's operators."""

from __future__ import annotations

from dataclasses import dataclass

from day0.artifacts.operators import Measurement, Outcome
from day0.errors import EvidenceMissing
from day0.verdict import Check, Verdict
from tasks.operators.measure import measure
from tasks.operators.records import Capture, Measured
from tasks.operators.settings import OperatorSettings
from tasks.operators.support.measured import outcome_of

#: How outcomes are named in a sentence, the worst first.
_WORDS: dict[Outcome, str] = {
    "wrong": "wrong", "does not run": "does not run", "falls back": "run on the CPU instead", "slow": "slow"
}  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """What was measured, for the lookup and for the report."""

    record: Measurement
    measured: tuple[Measured, ...] = ()
    check: Check | None = None


UNMEASURED = Evidence(Measurement(why_not="it was not asked for"))


def measured_evidence(settings: OperatorSettings, capture: Capture) -> Evidence:
    """Run the operators of a captured model on the target's device, if it is here.

    Where it is not, nothing is checked; that is inconclusive only where the settings ask for it.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    device = settings.operators.as_device()
    if settings.measure is False:
        return UNMEASURED
    lacking = Verdict.INCONCLUSIVE if settings.measure else Verdict.SKIPPED
    if device is None:
        return _nothing(lacking, f"torch's name of the device of {settings.target} is not known", device=None)
    if settings.hardware is None:
        return _nothing(lacking, settings.absent or f"it was not looked for a device {device.name}", device.name)
    if capture.source == "formulas":
        return _nothing(
            lacking, "formulas tell an operator's work, and not the tensors that it is called with", device.name
        )
    try:
        found = measure(capture, device.name, modules=device.modules, limit=settings.measure_limit)
    except EvidenceMissing as error:
        return _nothing(Verdict.INCONCLUSIVE, str(error), device.name, settings.hardware)
    called = {o.name for operators in capture.phases.values() for o in operators}
    unmeasured = {name: "no call of it was recorded" for name in sorted(called) if name not in found.measured}
    unmeasured |= {name: why for name, why in found.unmeasured.items() if name in called}
    if found.out_of_time:
        unmeasured |= dict.fromkeys(unmeasured, f"the {settings.measure_limit:g} s for measuring were over")
    record = Measurement(
        device=device.name,
        hardware=settings.hardware,
        outcomes={name: outcome_of(one) for name, one in sorted(found.measured.items())},
        details={name: one.detail for name, one in sorted(found.measured.items())},
        unmeasured=unmeasured,
    )
    return Evidence(record, tuple(found.measured.values()), _check(record, found.out_of_time))


def _check(record: Measurement, out_of_time: bool) -> Check:
    """What was seen on the device. Gaps do not fail the scan, which has found them."""
    by_outcome = {o: [name for name, its in record.outcomes.items() if its == o] for o in _WORDS}
    said = [f"{words}: {', '.join(by_outcome[o])}" for o, words in _WORDS.items() if by_outcome[o]]
    reasons: dict[str, list[str]] = {}
    for name, why in record.unmeasured.items():
        reasons.setdefault(why, []).append(name)
    if reasons:
        said.append("not measured: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items()))
    works = sum(outcome == "works" for outcome in record.outcomes.values())
    reason = f"{len(record.outcomes)} operators were run on {record.hardware} ({record.device}), and {works} work"
    return Check(
        name="measured",
        verdict=Verdict.INCONCLUSIVE if out_of_time else Verdict.PASS,
        reason="; ".join([reason, *said]),
        measured={"works": works, **{outcome: names for outcome, names in by_outcome.items() if names}},
    )


def _nothing(verdict: Verdict, why: str, device: str | None, hardware: str | None = None) -> Evidence:
    record = Measurement(device=device, hardware=hardware, why_not=why)
    return Evidence(record, check=Check(name="measured", verdict=verdict, reason=f"not measured: {why}"))
