"""Which accepted kernels the engine is given, and the folder that it is given them as."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from day0.artifacts.kernels import EnginePlugin, Kernel, KernelBundle, KernelUsage
from day0.artifacts.operators import OperatorReport
from day0.deadline import current
from day0.errors import EvidenceMissing
from day0.files import FileRef, file_ref
from day0.progress import report
from day0.target_operators import device_of
from day0.verdict import FOLLOW_UP, Check, Verdict
from tasks.kernels.build import library_of
from tasks.kernels.definition import KernelDefinition, PackageBackend
from tasks.kernels.engine_plugin.bundle import Chosen, write_plugin
from tasks.kernels.engine_plugin.places import has_place
from tasks.kernels.find import find_kernel
from tasks.kernels.gaps import offered, tried
from tasks.kernels.providers.choose import best

log = logging.getLogger("day0.kernels")

_NO_PLACE = "the engine's plugin has no adapter for "


def give(bundle: KernelBundle, operators: OperatorReport, use: KernelUsage, folder: Callable[[], Path]) -> KernelBundle:
    """The bundle with what the engine is given: kernels that meet a gap and, where asked, others that are accepted.

    A kernel that is rejected, or that the engine has no place for, is named as work to follow up; the engine has code
    of its own for what the target does not lack.

    Args:
        folder: makes the folder to write to; called only where there is something to give.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    lacking = {gap.name for gap in operators.gaps if gap.status in ("missing", "fallback")}
    kernels, unused = bundle.kernels, dict[str, str]()
    if use == "accepted":
        further, unused = _further(bundle)
        kernels = (*kernels, *further)
    if not kernels and not unused:
        return bundle
    chosen: list[Chosen] = []
    device = device_of(bundle.target)
    own = [kernel for kernel in kernels if not _package(find_kernel(kernel.name), kernel.backend)]
    unused |= {
        kernel.name: f"only its backend {kernel.backend} is accepted, whose package the engine's environment has not"
        for kernel in best(kernels)
        if kernel.name not in {k.name for k in best(own)}
    }
    for kernel in best(own):
        definition = find_kernel(kernel.name)
        places = tuple(name for name in definition.file.replaces if has_place(name) or name in lacking)
        if why := _hindrance(definition, places):
            unused[kernel.name] = why
        else:
            library = library_of(definition, kernel.backend, device)
            chosen.append(Chosen(definition, kernel.backend, library, places, kernel.elements))
    plugin: EnginePlugin | None = None
    files: tuple[FileRef, ...] = ()
    if chosen:
        if device is None:
            raise EvidenceMissing(
                f"torch's name of the device of {bundle.target} is not known: add it to its operators"
            )
        written = folder()
        plugin = write_plugin(written, device, chosen)
        files = tuple(file_ref(written, str(p.relative_to(written))) for p in sorted(written.rglob("*")) if p.is_file())
    used = {(kernel.name, kernel.backend): kernel for kernel in best(own) if kernel.name not in unused}
    kernels = tuple(used.get((kernel.name, kernel.backend), kernel) for kernel in kernels)
    check = _judge(plugin, kernels, unused, lacking)
    return bundle.model_copy(
        update={
            "kernels": kernels, "plugin": plugin, "unused": unused, "files": files, "checks": (check, *bundle.checks)
        }
    )  # fmt: skip


def _further(bundle: KernelBundle) -> tuple[list[Kernel], dict[str, str]]:
    """Kernels for the target that no gap asks for, each tried now unless it has passed before; and those that need not
    be tried, since the engine has no place for them."""
    had = {(kernel.name, kernel.backend) for kernel in bundle.kernels}
    offers = [(d, b) for d, b in offered(bundle.target) if not _package(d, b)]
    choices = [(d, b) for d, b in offers if (d.name, b) not in had]
    fitting = [(d, b) for d, b in choices if any(has_place(name) for name in d.file.replaces)]
    device = device_of(bundle.target)
    found = []
    for number, (definition, backend) in enumerate(fitting):
        current().check()
        report("accepting kernels", number, len(fitting), "kernels")
        found.append(tried(definition, backend, device))
    return found, {d.name: _NO_PLACE + _replaced(d) for d, b in choices if (d, b) not in fitting}


def _hindrance(definition: KernelDefinition, places: tuple[str, ...]) -> str | None:
    """Why the engine cannot be given an accepted kernel; None where it can."""
    if not places:
        return _NO_PLACE + _replaced(definition)
    if definition.schema.mutates:
        return "it writes to its arguments, and a call that it fails could not be answered again"
    return None


def _package(definition: KernelDefinition, backend: str) -> bool:
    """Whether a backend calls another project's package, which the engine's environment does not have."""
    return isinstance(definition.backend(backend), PackageBackend)


def _replaced(definition: KernelDefinition) -> str:
    return ", ".join(definition.file.replaces) or "it: it replaces nothing"


def _judge(plugin: EnginePlugin | None, kernels: Sequence[Kernel], unused: dict[str, str], lacking: set[str]) -> Check:
    passed = {kernel.name for kernel in kernels if kernel.verdict is Verdict.PASS}
    follow_up = [
        f"kernel {kernel.name} for {kernel.backend} is not accepted: {kernel.error.get('reason', kernel.verdict)}"
        for kernel in {k.name: k for k in kernels if k.name not in passed}.values()
    ]
    follow_up += [f"kernel {name} is accepted and not used: {why}" for name, why in unused.items() if name in passed]
    for sentence in follow_up:
        log.warning("follow-up: %s", sentence)
    measured = {FOLLOW_UP: follow_up} if follow_up else {}
    needed = [name for name in unused if name in passed and lacking.intersection(find_kernel(name).file.replaces)]
    if needed:
        reason = f"the engine cannot be given what meets a gap: {needed[0]}: {unused[needed[0]]}"
        return Check(name="given", verdict=Verdict.INCONCLUSIVE, reason=reason, measured=measured)
    left = [f"to follow up: {'; '.join(follow_up)}"] if follow_up else []
    if without := [name for name in unused if name not in passed]:
        left.append(f"the engine has no place for {', '.join(without)}")
    if plugin is None:
        reason = "; ".join(["the engine is given no kernel", *left])
        return Check(name="given", verdict=Verdict.SKIPPED, reason=reason, measured=measured)
    named = ", ".join(f"{k.name} ({k.backend}) for {' '.join(k.places)}" for k in plugin.kernels)
    counted = f"the engine is given {len(plugin.kernels)} accepted kernel{'s' * (len(plugin.kernels) > 1)}: {named}"
    return Check(name="given", verdict=Verdict.PASS, reason="; ".join([counted, *left]), measured=measured)
