"""A kernel's verdict: built, then tried in a process of its own, whose death is a verdict, too."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from day0 import home, process
from day0.artifacts.kernels import Kernel
from day0.devices import lacking, upstream
from day0.errors import EvidenceMissing
from day0.files import write_json
from day0.progress import report
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.acceptance.records import OPENING, Answer, Request
from tasks.kernels.build import library_of
from tasks.kernels.definition import CompiledBackend, KernelDefinition, PackageBackend
from tasks.kernels.providers.packages import missing, provider
from tasks.kernels.toolchain import TRITON_FP_FUSION

logger = logging.getLogger("day0.kernels")

#: Seconds that an acceptance may take: some kernels hang.
LIMIT = 600.0
_SENTENCE = re.compile(r"day0\.errors\.\w+: ")
_FRAME = re.compile(r'File "(.+)", line (\d+)')
#: Bytes that a case may move under Triton's interpreter.
INTERPRETED = 1 << 20
CPU = Device("cpu", "CPU")
#: A pool of OpenMP threads that spins while it waits takes a hundred times as long where threads outnumber cores.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONHASHSEED": "0",
    "TRITON_DEFAULT_FP_FUSION": TRITON_FP_FUSION,
}


def accept(
    definition: KernelDefinition,
    backend: str,
    *,
    device: Device | None = None,
    seed: int | None = None,
    limit: float = LIMIT,
    interpret: bool = False,
) -> Kernel:
    """The verdict on one kernel's backend on a target's device, or on the one that the backend is for.

    `pass` only after every check; `fail` with the reason; `inconclusive` where the device that the backend needs is
    not here. `interpret` runs a Triton kernel by Triton's interpreter on the CPU, which can reject but not accept it.
    `error` has the seed, so that a verdict can be repeated.

    Raises:
        BuildFailed, Unavailable, EvidenceMissing: it could not be built at all.
        StageTimeout, Cancelled: the stage's own time was up.
    """
    spec = definition.backend(backend)
    compiled = isinstance(spec, CompiledBackend)
    if isinstance(spec, PackageBackend) and (absent := missing(spec, backend)):
        return verdict(definition, backend, Verdict.INCONCLUSIVE, absent)
    library = library_of(definition, backend, device)
    where = CPU if interpret else device or usual_device(backend)
    done = "it was compiled ahead of time and not run" if compiled else "it was not run"
    if why := lacking(where):
        return verdict(
            definition, backend, Verdict.INCONCLUSIVE, f"there is no {where.name} device here ({why}): {done}"
        )
    try:
        package = provider(definition, backend)
    except EvidenceMissing as error:
        return verdict(definition, backend, Verdict.INCONCLUSIVE, str(error))
    request = Request(
        folder=str(definition.folder),
        backend=backend,
        library=str(library) if library else None,
        device=where.name,
        modules=where.modules,
        key=where.key,
        bridged=not upstream(where),
        seed=secrets.randbits(31) if seed is None else seed,
        largest=INTERPRETED if interpret else None,
    )
    report(f"accepting {definition.name} for {backend}")
    extra = {"TRITON_INTERPRET": "1"} if interpret else {}
    if package is not None:
        extra |= package.environment
    answer, died = run_worker("tasks.kernels.acceptance.worker", request.to_json(), limit, extra)
    if answer is None and died.endswith(f"at {OPENING}"):
        answer = Answer(absent=died, fault=None, error={}).to_json()
    if answer is None:
        return verdict(definition, backend, Verdict.FAIL, died, {"seed": request.seed})
    try:
        found = Answer.model_validate(answer)
    except ValidationError:
        return verdict(definition, backend, Verdict.FAIL, "its process left an answer that cannot be read", {})
    if found.absent is not None:
        reason = f"there is no {where.name} device here ({found.absent}): {done}"
        return verdict(definition, backend, Verdict.INCONCLUSIVE, reason)
    if found.fault:
        reason = f"{found.kind}: {found.fault}"
        return verdict(definition, backend, Verdict.FAIL, reason, {**found.error, "kind": found.kind})
    if package is not None:
        found.error["package"] = package.identity
        if not found.error["calls"]["answered"]:
            reason = f"{package.identity} has nothing for any case: {', '.join(found.error['calls']['declined'])}"
            return verdict(definition, backend, Verdict.INCONCLUSIVE, reason, found.error)
    if interpret:
        reason = "right under Triton's interpreter; not run on a device"
        return verdict(definition, backend, Verdict.INCONCLUSIVE, reason, found.error)
    if not found.error.get("poisoned"):
        reason = "memory could not be poisoned here, so that unwritten elements might not show"
        return verdict(definition, backend, Verdict.INCONCLUSIVE, reason, found.error)
    return verdict(definition, backend, Verdict.PASS, "", found.error)


def usual_device(backend: str) -> Device:
    """The device that a backend is for where no target says another."""
    on_cpu = backend == "cpu" or (backend == "hub" and not has_cuda())
    return CPU if on_cpu else Device("cuda", "CUDA")


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

    with tempfile.TemporaryDirectory(prefix="day0-kernel-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(asked, request)
        command = [sys.executable, "-m", module, str(asked), str(answered)]
        environment = os.environ | ENVIRONMENT | {"TMPDIR": folder} | (extra or {})
        try:
            process.run_within(limit, command, cwd=home.PROJECT, env=environment, on_line=listen)
        except process.ProcessFailed as error:
            return None, f"{_death(error, str(request['folder']))}, at {last}"
        except process.TimedOut as error:
            return None, f"{error}, at {last}"
        if not answered.is_file():
            return None, f"its process ended without an answer, at {last}"
        found: dict[str, Any] = json.loads(answered.read_bytes())
        return found, ""


def _death(error: process.ProcessFailed, folder: str) -> str:
    """How the process ended; of an error in Python, where in the kernel's folder, as far as its traceback says."""
    if error.returncode >= 0:
        lines = [line.strip() for line in reversed(error.tail) if line.strip()]
        last = lines[0] if lines else "it printed nothing"
        if own := _SENTENCE.match(last):
            return last[own.end() :]
        frames = (match for line in lines if (match := _FRAME.match(line)))
        where = next((f"{frame[1]}:{frame[2]}: " for frame in frames if frame[1].startswith(f"{folder}/")), "")
        return f"its process ended with code {error.returncode}: {where}{last}"
    try:
        name = signal.Signals(-error.returncode).name
    except ValueError:
        name = f"signal {-error.returncode}"
    why = ", as the kernel of the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{why}"


def has_cuda() -> bool:
    """Whether this machine has an NVIDIA device, without importing torch."""
    return any(Path("/dev").glob("nvidia[0-9]*"))
