"""What `day0 kernels` does: list, build, accept, bench, export."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from day0.artifacts.kernels import Kernel
from day0.errors import CheckFailed, EvidenceMissing, InputError, Unavailable
from day0.target import load_target
from day0.target_operators import Device, device_of
from day0.verdict import Verdict, worst
from tasks.kernels.acceptance.run import accept, verdict
from tasks.kernels.build import BuildFailed, architecture_of, build
from tasks.kernels.definition import KernelDefinition, PackageBackend
from tasks.kernels.export import export
from tasks.kernels.find import kernels_folder
from tasks.kernels.gaps import backends_of, offered, tried, withheld
from tasks.kernels.providers.choose import best, marked
from tasks.kernels.timing import bench_all
from tasks.kernels.verdicts import keep, known

#: What is reported of each function that was compiled ahead of time.
FUNCTION = ("name", "registers", "spills", "shared")

Choices = Sequence[tuple[KernelDefinition, str]]


def act(
    action: str, names: tuple[str, ...], target: str, *, runtime: str = "process", output: Path | None = None
) -> tuple[tuple[Kernel, ...], Verdict]:
    """The kernels after an action, and how the action went: a list or a build is good whatever was accepted before.

    Args:
        runtime: where `build` compiles: `process` or `docker`.
        output: where `export` writes to.

    Raises:
        InputError: a name is none of the target's kernels, or a kernel's folder is malformed.
        Unavailable, EvidenceMissing: there is no compiler, or no torch; there is no kernel to export.
        CheckFailed: no kernel is for this target, so that there is nothing to do.
    """
    choices, device = _chosen(names, target), device_of(target)
    if action != "list" and not choices and not withheld(target):
        raise CheckFailed(f"there is no kernel for {target}: {_why_none(target)}")
    if action == "list":
        kernels = marked([known(definition, backend, device) for definition, backend in choices])
        return (*kernels, *_withheld(names, target)), Verdict.PASS
    if action == "build":
        kernels = tuple(_build(definition, backend, target, runtime) for definition, backend in choices)
        return kernels, worst(_how_built(kernel) for kernel in kernels)
    if action == "export":
        if output is None:
            raise InputError("export needs --output, the folder to write to")
        return _export(choices, target, device, output)
    done = _accept(choices, device) if action == "accept" else _bench(choices, device)
    return (*marked(done), *_withheld(names, target)), _how_tried(done, choices)


def _chosen(names: tuple[str, ...], target: str) -> Choices:
    available = offered(target)
    if names and not available:
        raise InputError(f"there is no kernel for {target}: {_why_none(target)}")
    known_names = sorted({definition.name for definition, _ in available})
    for name in names:
        if name not in known_names:
            near = difflib.get_close_matches(name, known_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`day0 kernels list` names all"
            raise InputError(f"there is no kernel named {name!r} for {target}; {hint}")
    return [(definition, backend) for definition, backend in available if not names or definition.name in names]


def _why_none(target: str) -> str:
    if not (backends := backends_of(target)):
        return f"configs/operators/{load_target(target).operators}.yaml names no backend of kernels"
    return f"none in {kernels_folder()} has a backend for it ({', '.join(backends)})"


def _withheld(names: tuple[str, ...], target: str) -> list[Kernel]:
    return [kernel for kernel in withheld(target) if not names or kernel.name in names]


def _build(definition: KernelDefinition, backend: str, target: str, runtime: str) -> Kernel:
    """The kernel with what is known of its verdict, and in `error` where its library lies, or why there is none."""
    if isinstance(definition.backend(backend), PackageBackend):
        return known(definition, backend, device_of(target))
    try:
        built = build(definition, backend, architecture_of(target, definition, backend), runtime=runtime)
    except BuildFailed as error:
        return verdict(definition, backend, Verdict.FAIL, str(error), {"built": False})
    except EvidenceMissing as error:
        return verdict(definition, backend, Verdict.INCONCLUSIVE, str(error), {"built": None})
    kernel = known(definition, backend, device_of(target))
    made = {"built": True, "library": str(built.path), "library_sha256": built.digest, "cached": built.cached}
    functions = [{key: function[key] for key in FUNCTION} for function in built.functions]
    return kernel.model_copy(update={"error": {**kernel.error, **made, "functions": functions}})


def _how_built(kernel: Kernel) -> Verdict:
    """A build is good whatever was accepted before; what could only be built elsewhere is inconclusive."""
    if "built" not in kernel.error or kernel.error["built"]:
        return Verdict.PASS
    return kernel.verdict


def _accept(choices: Choices, device: Device | None) -> list[Kernel]:
    """Always anew: inputs are others each time."""
    found = []
    for definition, backend in choices:
        try:
            found.append(keep(definition, accept(definition, backend, device=device), device))
        except BuildFailed as error:
            found.append(verdict(definition, backend, Verdict.FAIL, str(error)))
    return found


def _bench(choices: Choices, device: Device | None) -> list[Kernel]:
    """The accepted backends of each kernel side by side."""
    found = []
    for definition in {definition.name: definition for definition, _ in choices}.values():
        backends = [backend for its, backend in choices if its.name == definition.name]
        tries = [tried(definition, backend, device) for backend in backends]
        timed = bench_all(tries, definition, device=device)
        found += [
            keep(definition, after, device) if after != before else before
            for before, after in zip(tries, timed, strict=True)
        ]
    return found


def _how_tried(kernels: Sequence[Kernel], choices: Choices) -> Verdict:
    """The worst verdict on our own backends. Of another project's a rejection is what acceptance is for, and an
    optional one need not be here: it counts only for a kernel that has no backend of ours.
    """
    packages = {(d.name, backend) for d, backend in choices if isinstance(d.backend(backend), PackageBackend)}
    ours = {kernel.name for kernel in kernels if (kernel.name, kernel.backend) not in packages}
    counted = [k.verdict for k in kernels if (k.name, k.backend) not in packages]
    return worst([*counted, *(k.verdict for k in kernels if k.name not in ours)])


def _export(choices: Choices, target: str, device: Device | None, output: Path) -> tuple[tuple[Kernel, ...], Verdict]:
    """The accepted ones of ours, the one that is used of each; `error.exported` is where it was written to."""
    packages = {(d.name, backend) for d, backend in choices if isinstance(d.backend(backend), PackageBackend)}
    definitions = {definition.name: definition for definition, _ in choices}
    kernels = [known(definition, backend, device) for definition, backend in choices]
    ours = [kernel for kernel in kernels if (kernel.name, kernel.backend) not in packages]
    written = []
    for kernel in best(ours):
        try:
            place = export(definitions[kernel.name], kernel, output, device)
        except (BuildFailed, Unavailable) as error:
            written.append(kernel.model_copy(update={"verdict": Verdict.FAIL, "error": {"reason": str(error)}}))
        else:
            written.append(kernel.model_copy(update={"error": {**kernel.error, "exported": str(place)}}))
    without = [k for k in ours if k.name not in {one.name for one in written}]
    if not written:
        raise EvidenceMissing(f"none of the kernels is accepted for {target}: day0 kernels accept tries them first")
    return (*written, *without), worst([k.verdict for k in written] + [Verdict.INCONCLUSIVE] * bool(without))
