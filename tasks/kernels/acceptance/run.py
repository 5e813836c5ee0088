"""A kernel's verdict: built, then tried in a process of its own, whose death is a verdict, too."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from day0 import deadline, home, process
from day0.artifacts.kernels import Kernel
from day0.deadline import Deadline
from day0.errors import Cancelled, StageTimeout
from day0.files import write_json
from day0.progress import report
from day0.verdict import Verdict
from tasks.kernels import build as building
from tasks.kernels.acceptance.records import Answer, Request
from tasks.kernels.definition import CompiledBackend, KernelDefinition

logger = logging.getLogger("day0.kernels")

#: Seconds that an acceptance may take: some kernels hang.
LIMIT = 600.0
#: Bytes that a case may move under Triton's interpreter.
INTERPRETED = 1 << 20
#: A pool of OpenMP threads that spins while it waits takes a hundred times as long where threads outnumber cores.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONHASHSEED": "0",
    "TRITON_DEFAULT_FP_FUSION": building.TRITON_FP_FUSION,
}


def accept(
    definition: KernelDefinition,
    backend: str,
    *,
    seed: int | None = None,
    limit: float = LIMIT,
    interpret: bool = False,
) -> Kernel:
    """The verdict on one kernel's backend on this machine's device.

    `pass` only after every check; `fail` with the reason; `inconclusive` where the device that the backend needs is
    not here. `interpret` runs a Triton kernel by Triton's interpreter on the CPU, which can reject but not accept it.
    `error` has the seed, so that a verdict can be repeated.

    Raises:
        BuildFailed, Unavailable, EvidenceMissing: it could not be built at all.
        StageTimeout, Cancelled: the stage's own time was up.
    """
    compiled = isinstance(definition.backend(backend), CompiledBackend)
    library = building.build(definition, backend).path if compiled else None
    device, key = ("cpu", "CPU") if interpret or backend == "cpu" else ("cuda", None)
    if device == "cuda" and not has_cuda():
        done = "it was compiled ahead of time and not run" if compiled else "it was not run"
        return verdict(definition, backend, Verdict.INCONCLUSIVE, f"there is no CUDA device here: {done}")
    request = Request(
        folder=str(definition.folder),
        backend=backend,
        library=str(library) if library else None,
        device=device,
        key=key,
        seed=secrets.randbits(31) if seed is None else seed,
        largest=INTERPRETED if interpret else None,
    )
    report(f"accepting {definition.name} for {backend}")
    extra = {"TRITON_INTERPRET": "1"} if interpret else {}
    answer, died = run_worker("tasks.kernels.acceptance.worker", request.to_json(), limit, extra)
    if answer is None:
        return verdict(definition, backend, Verdict.FAIL, died, {"seed": request.seed})
    try:
        found = Answer.model_validate(answer)
    except ValidationError:
        return verdict(definition, backend, Verdict.FAIL, "its process left an answer that cannot be read", {})
    if found.fault:
        reason = f"{found.kind}: {found.fault}"
        return verdict(definition, backend, Verdict.FAIL, reason, {**found.error, "kind": found.kind})
    if interpret:
        reason = "right under Triton's interpreter; not run on a device"
        return verdict(definition, backend, Verdict.INCONCLUSIVE, reason, found.error)
    if not found.error.get("poisoned"):
        reason = "memory could not be poisoned here, so that unwritten elements might not show"
        return verdict(definition, backend, Verdict.INCONCLUSIVE, reason, found.error)
    return verdict(definition, backend, Verdict.PASS, "", found.error)


def verdict(
    definition: KernelDefinition, backend: str, found: Verdict, reason: str, error: dict[str, Any] | None = None
) -> Kernel:
    """A kernel's record; the reason goes into `error`."""
    if reason:
        logger.info("%s for %s: %s: %s", definition.name, backend, found, reason)
    return Kernel(
        name=definition.name,
        backend=backend,
        verdict=found,
        error={**({"reason": reason} if reason else {}), **(error or {})},
        speedup={},
        roofline=None,
        digest=definition.digest(backend),
    )


def run_worker(
    module: str, request: dict[str, Any], limit: float, extra: dict[str, str] | None = None
) -> tuple[dict[str, Any] | None, str]:
    """Run a module of this package on a request; its answer, or None and how it died and where.

    Raises:
        StageTimeout, Cancelled: the stage's own time was up, not this process's.
    """
    last = "its start"

    def listen(line: str) -> None:
        nonlocal last
        if line.startswith("at: "):
            last = line.removeprefix("at: ")

    outer = deadline.current()
    own = Deadline("the process", outer.remaining(limit))
    with tempfile.TemporaryDirectory(prefix="day0-kernel-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(asked, request)
        command = [sys.executable, "-m", module, str(asked), str(answered)]
        environment = os.environ | ENVIRONMENT | {"TMPDIR": folder} | (extra or {})
        try:
            with outer.guard(lambda: own.end(Cancelled("the stage ended"))), own.running():
                process.run(command, cwd=home.PROJECT, env=environment, on_line=listen)
        except process.ProcessFailed as error:
            return None, f"{_death(error)}, at {last}"
        except StageTimeout:
            outer.check()
            return None, f"it did not end in {limit:g} s, at {last}"
        if not answered.is_file():
            return None, f"its process ended without an answer, at {last}"
        found: dict[str, Any] = json.loads(answered.read_bytes())
        return found, ""


def _death(error: process.ProcessFailed) -> str:
    if error.returncode >= 0:
        last = next((line.strip() for line in reversed(error.tail) if line.strip()), "it printed nothing")
        return f"its process ended with code {error.returncode}: {last}"
    try:
        name = signal.Signals(-error.returncode).name
    except ValueError:
        name = f"signal {-error.returncode}"
    why = ", as the kernel of the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{why}"


def has_cuda() -> bool:
    """Whether this machine has an NVIDIA device, without importing torch."""
    return any(Path("/dev").glob("nvidia[0-9]*"))
