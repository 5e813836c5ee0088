"""Verdicts that kernels have been given on this machine, kept in `DAY0_HOME/kernels/verdicts/`.

A verdict is found again only for the same definition, sources and library, and the same torch: anything else has not
been accepted.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from day0.artifacts.kernels import Kernel
from day0.errors import EvidenceMissing, Unavailable
from day0.files import digest_of, write_json
from day0.home import home
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import accept, verdict
from tasks.kernels.compiler import cxx, installed_torch, nvcc
from tasks.kernels.definition import KernelDefinition


def known(definition: KernelDefinition, backend: str) -> Kernel:
    """What is known of a kernel here: its last verdict, or `inconclusive`, because it has not been tried."""
    try:
        found = Kernel.model_validate_json(_place(definition, backend).read_bytes())
    except (Unavailable, EvidenceMissing) as error:
        return verdict(definition, backend, Verdict.INCONCLUSIVE, str(error))
    except (OSError, ValidationError):
        return verdict(definition, backend, Verdict.INCONCLUSIVE, "not accepted yet: day0 kernels accept tries it")
    return found


def keep(definition: KernelDefinition, kernel: Kernel) -> Kernel:
    """Write a verdict down, to be found by `known`."""
    write_json(_place(definition, kernel.backend), kernel.to_json())
    return kernel


def accepted(definition: KernelDefinition, backend: str) -> Kernel:
    """The verdict on a kernel: one given before if it is `pass`, else a new one.

    A rejection is not taken from before: what a machine lacked then it may have now.

    Raises:
        BuildFailed, Unavailable, EvidenceMissing: it could not be built.
        StageTimeout, Cancelled: the stage's time was up.
    """
    before = known(definition, backend)
    return before if before.verdict is Verdict.PASS else keep(definition, accept(definition, backend))


def _place(definition: KernelDefinition, backend: str) -> Path:
    named = {
        "definition": definition.digest(backend),
        "backend": backend,
        "torch": installed_torch().version,
        "compiler": {"cpu": cxx, "cuda": nvcc}[backend]().version if backend != "triton" else None,
        "machine": platform.node(),
        "checks": _checks(),
    }
    return home() / "kernels" / "verdicts" / f"{definition.name}-{backend}-{digest_of(named)[:32]}.json"


@cache
def _checks() -> str:
    """The digest of the acceptance itself: what an older one let through is tried again."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("acceptance/*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
