"""Verdicts that kernels have been given on this machine, kept in `DAY0_HOME/kernels/verdicts/`.

A verdict is found again only for the same definition, sources and library, and the same torch: anything else has not
been accepted.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from day0.artifacts.kernels import Kernel
from day0.errors import EvidenceMissing, Unavailable
from day0.files import digest_of, write_json
from day0.home import home
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import accept, usual_device, verdict
from tasks.kernels.compiler import cxx, installed_torch, nvcc
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.providers.packages import identity

logger = logging.getLogger("day0.kernels")


def known(definition: KernelDefinition, backend: str, device: Device | None = None) -> Kernel:
    """What is known of a kernel on a target's device here: its last verdict, or `inconclusive`, because it has not been
    tried."""
    try:
        found = Kernel.model_validate_json(_place(definition, backend, device).read_bytes())
    except (Unavailable, EvidenceMissing) as error:
        return verdict(definition, backend, Verdict.INCONCLUSIVE, str(error))
    except (OSError, ValidationError):
        return verdict(definition, backend, Verdict.INCONCLUSIVE, "not accepted yet: day0 kernels accept tries it")
    return found


def keep(definition: KernelDefinition, kernel: Kernel, device: Device | None = None) -> Kernel:
    """Write a verdict down, to be found by `known`."""
    try:
        write_json(_place(definition, kernel.backend, device), kernel.to_json())
    except EvidenceMissing:  # what it needs is not here: there is no verdict to be found again
        logger.debug("%s for %s: nothing is kept", kernel.name, kernel.backend)
    return kernel


def accepted(definition: KernelDefinition, backend: str, device: Device | None = None) -> Kernel:
    """The verdict on a kernel: one given before if it is `pass`, else a new one.

    A rejection is not taken from before: what a machine lacked then it may have now.

    Raises:
        BuildFailed, Unavailable, EvidenceMissing: it could not be built.
        StageTimeout, Cancelled: the stage's time was up.
    """
    before = known(definition, backend, device)
    if before.verdict is Verdict.PASS:
        return before
    return keep(definition, accept(definition, backend, device=device), device)


def _place(definition: KernelDefinition, backend: str, device: Device | None) -> Path:
    named = {
        "definition": definition.digest(backend),
        "backend": backend,
        "torch": installed_torch().version,
        "compiler": {"cpu": cxx, "cuda": nvcc}[backend]().version if backend in ("cpu", "cuda") else None,
        "triton": _installed("triton") if backend in ("triton", "flaggems") else None,
        "package": identity(definition, backend),
        "device": (device or usual_device(backend)).name,
        "architecture": device.architecture if device and backend == "cuda" else None,
        "machine": platform.node(),
        "checks": _checks(),
    }
    return home() / "kernels" / "verdicts" / f"{definition.name}-{backend}-{digest_of(named)[:32]}.json"


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def _checks() -> str:
    """The digest of the acceptance itself: what an older one let through is tried again."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in (*sorted(here.glob("acceptance/*.py")), here / "providers" / "adapter.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()
