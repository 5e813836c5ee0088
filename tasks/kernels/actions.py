"""What `day0 kernels` does: list, build, accept, bench."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from day0.artifacts.kernels import Kernel
from day0.errors import InputError
from day0.verdict import Verdict, worst
from tasks.kernels.acceptance.run import accept, verdict
from tasks.kernels.build import BuildFailed, build
from tasks.kernels.definition import CompiledBackend, KernelDefinition
from tasks.kernels.gaps import offered
from tasks.kernels.timing import bench
from tasks.kernels.verdicts import accepted, keep, known


def act(action: str, names: tuple[str, ...], target: str) -> tuple[tuple[Kernel, ...], Verdict]:
    """The kernels after an action, and how the action went: a list or a build is good whatever was accepted before.

    Raises:
        InputError: a name is none of the target's kernels, or a kernel's folder is malformed.
        Unavailable, EvidenceMissing: there is no compiler, or no torch.
    """
    chosen = _chosen(names, target)
    does = _ACTIONS[action]
    kernels = tuple(does(definition, backend) for definition, backend in chosen)
    if action == "list":
        return kernels, Verdict.PASS
    if action == "build":
        failed = any(kernel.error.get("built") is False for kernel in kernels)
        return kernels, Verdict.FAIL if failed or not kernels else Verdict.PASS
    return kernels, worst(kernel.verdict for kernel in kernels)


def _chosen(names: tuple[str, ...], target: str) -> list[tuple[KernelDefinition, str]]:
    available = offered(target)
    known_names = sorted({definition.name for definition, _ in available})
    for name in names:
        if name not in known_names:
            near = difflib.get_close_matches(name, known_names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`day0 kernels list` names all"
            raise InputError(f"there is no kernel named {name!r} for {target}; {hint}")
    return [(definition, backend) for definition, backend in available if not names or definition.name in names]


def _build(definition: KernelDefinition, backend: str) -> Kernel:
    """The kernel with what is known of its verdict, and in `error` where its library lies."""
    if not isinstance(definition.backend(backend), CompiledBackend):
        return known(definition, backend)
    try:
        built = build(definition, backend)
    except BuildFailed as error:
        return verdict(definition, backend, Verdict.FAIL, str(error), {"built": False})
    kernel = known(definition, backend)
    made = {"built": True, "library": str(built.path), "library_sha256": built.digest, "cached": built.cached}
    return kernel.model_copy(update={"error": {**kernel.error, **made}})


def _accept(definition: KernelDefinition, backend: str) -> Kernel:
    """Always anew: inputs are others each time."""
    try:
        return keep(definition, accept(definition, backend))
    except BuildFailed as error:
        return verdict(definition, backend, Verdict.FAIL, str(error))


def _bench(definition: KernelDefinition, backend: str) -> Kernel:
    try:
        return keep(definition, bench(accepted(definition, backend), definition))
    except BuildFailed as error:
        return verdict(definition, backend, Verdict.FAIL, str(error))


_ACTIONS: dict[str, Callable[[KernelDefinition, str], Kernel]] = {
    "list": known,
    "build": _build,
    "accept": _accept,
    "bench": _bench,
}
