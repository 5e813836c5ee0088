"""From the gaps of an operator scan to kernels: a gap is met by a kernel that was accepted, and by nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from day0.artifacts.kernels import Kernel, KernelBundle
from day0.artifacts.operators import Gap, OperatorReport
from day0.deadline import current
from day0.errors import EvidenceMissing, InputError, Unavailable
from day0.progress import report
from day0.target import load_target
from day0.target_operators import Device, device_of, operators_of
from day0.verdict import Check, Verdict
from tasks.kernels.acceptance.run import verdict
from tasks.kernels.build import BuildFailed
from tasks.kernels.definition import BACKENDS, KernelDefinition
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.providers.choose import marked
from tasks.kernels.providers.listed import black_listed, fits
from tasks.kernels.timing import bench_all
from tasks.kernels.verdicts import accepted, keep, known

#: Rounds of timing by which the fastest of several accepted backends is told.
_REPEATS = 7


def offered(target: str) -> tuple[tuple[KernelDefinition, str], ...]:
    """Each kernel with each of its backends that a target can run, accepted or not."""
    return tuple((d, backend) for d, backend in _fitting(target) if not black_listed(d, backend, target))


def withheld(target: str) -> tuple[Kernel, ...]:
    """Adapters that are not tried, because the target's vendor says that what they call does not work there."""
    reasons = ((d, backend, black_listed(d, backend, target)) for d, backend in _fitting(target))
    return tuple(verdict(d, backend, Verdict.SKIPPED, reason) for d, backend, reason in reasons if reason)


def provided(target: str) -> tuple[Kernel, ...]:
    """The kernels that can be had for a target, with the verdicts that they have been given here."""
    device = device_of(target)
    return tuple(known(definition, backend, device) for definition, backend in offered(target))


def fill_gaps(operators: OperatorReport) -> KernelBundle:
    """Kernels for the gaps, the most costly first, each tried now unless it has passed before. What the device computes
    wrongly is a gap; what it is slow at is not, but kernels for it are tried, too. `unmet` names gaps without a kernel
    that passed.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    gaps = [gap for gap in operators.gaps if gap.status in ("missing", "fallback")]
    wanted = [gap.name for gap in (*gaps, *operators.slow)]
    # Without a gap there is nothing to meet, and the target need not be one of those that are configured.
    choices = offered(operators.target) if wanted else ()
    device = device_of(operators.target) if wanted else None
    fitting = [(d, b) for d, b in choices if not set(wanted).isdisjoint(d.file.replaces)]
    fitting.sort(key=lambda choice: min(wanted.index(name) for name in choice[0].file.replaces if name in wanted))
    tries: list[Kernel] = []
    for number, (definition, backend) in enumerate(fitting):
        current().check()
        report("accepting kernels", number, len(fitting), "kernels")
        tries.append(tried(definition, backend, device))
    definitions = {definition.name: definition for definition, _ in fitting}
    kernels = _compared(tries, definitions, device)
    met: dict[str, str] = {}
    for kernel in kernels:
        if kernel.chosen is not None:
            met |= dict.fromkeys(definitions[kernel.name].file.replaces, f"{kernel.name} for {kernel.backend}")
    unmet = tuple(gap.name for gap in gaps if gap.name not in met)
    checks = [_judge(operators, gaps, met, kernels)]
    return KernelBundle(target=operators.target, kernels=kernels, unmet=unmet, checks=tuple(checks))


def _compared(
    kernels: Sequence[Kernel], definitions: Mapping[str, KernelDefinition], device: Device | None
) -> tuple[Kernel, ...]:
    """Those that are used marked, the fastest where several backends of a kernel are accepted: they are timed side by
    side unless they have been."""
    found: list[Kernel] = []
    for name, definition in definitions.items():
        its = [kernel for kernel in kernels if kernel.name == name]
        accepted_ones = [kernel for kernel in its if kernel.verdict is Verdict.PASS]
        runs = {kernel.speedup.get("run") for kernel in accepted_ones}
        if len(accepted_ones) > 1 and (None in runs or len(runs) > 1):
            timed = bench_all(its, definition, device=device, repeats=_REPEATS, compiled=False)
            its = [
                keep(definition, after, device) if after != before else before
                for before, after in zip(its, timed, strict=True)
            ]
        found += its
    return marked(found)


def tried(definition: KernelDefinition, backend: str, device: Device | None = None) -> Kernel:
    """A kernel's verdict; one that cannot be built has one, too."""
    try:
        return accepted(definition, backend, device)
    except BuildFailed as error:
        return verdict(definition, backend, Verdict.FAIL, str(error))
    except (Unavailable, EvidenceMissing) as error:
        return verdict(definition, backend, Verdict.INCONCLUSIVE, str(error))


def _judge(operators: OperatorReport, gaps: list[Gap], met: dict[str, str], kernels: Sequence[Kernel]) -> Check:
    called = {operator.name for phase in operators.phases.values() for operator in phase.operators}
    unmet = [gap for gap in gaps if gap.name not in met]
    slow = [f"{gap.name} ({met[gap.name]})" for gap in operators.slow if gap.name in met]
    further = f"; accepted also for what is slow there: {', '.join(slow)}" if slow else ""
    if unmet:
        named = ", ".join(f"{gap.name} ({_what(gap)})" for gap in unmet)
        tried = "".join(f"; {k.name} for {k.backend}: {k.error['reason']}" for k in kernels if "reason" in k.error)
        reason = (
            f"{operators.target} lacks {len(unmet)} of {len(called)} operators, and no kernel is accepted for them: "
            f"{named}{tried}"
        )
        return Check(name="gaps", verdict=Verdict.FAIL, reason=reason)
    if not called or not operators.verdict.good:
        reason = f"what {operators.target} lacks is not known: {operators.reason}"
        return Check(name="gaps", verdict=Verdict.INCONCLUSIVE, reason=reason)
    if gaps:
        named = ", ".join(f"{gap.name} ({_what(gap)}): {met[gap.name]}" for gap in gaps)
        reason = f"all {len(gaps)} operators that {operators.target} lacks have an accepted kernel: {named}{further}"
        return Check(name="gaps", verdict=Verdict.PASS, reason=reason)
    reason = f"{operators.target} lacks none of the {len(called)} operators that the model calls{further}"
    return Check(name="gaps", verdict=Verdict.SKIPPED, reason=reason)


def _what(gap: Gap) -> str:
    return "wrong" if gap.measured == "wrong" else gap.status


def _fitting(target: str) -> list[tuple[KernelDefinition, str]]:
    """Kernels and backends, each kernel's most wanted last."""
    wanted = backends_of(target)
    found = [find_kernel(name) for name in kernel_names()] if wanted else []
    pairs = ((definition, backend) for definition in found for backend in wanted if backend in definition.backends)
    return [(definition, backend) for definition, backend in pairs if fits(definition, backend, target)]


def backends_of(target: str) -> tuple[str, ...]:
    """The backends of kernels that a target can run, most wanted last.

    Raises:
        InputError: there is no such target, or its operators' file names a backend that kernels do not have.
    """
    where = load_target(target)
    wanted = operators_of(where).kernels
    wrong = next((name for name in wanted if name not in BACKENDS), None)
    if wrong is not None:
        raise InputError(
            f"configs/operators/{where.operators}.yaml: kernels: {wrong!r} is none of {', '.join(BACKENDS)}"
        )
    return wanted
