"""How fast accepted kernels are: side by side, beside the framework, and as a share of what the memory gives."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Sequence

from pydantic import ValidationError

from day0.artifacts.kernels import Kernel
from day0.errors import Unavailable
from day0.progress import report
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import run_worker, usual_device
from tasks.kernels.build import library_of
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.providers.packages import provider
from tasks.kernels.timing_records import STREAMING_COPY, Contender, Timed, TimingAnswer, TimingRequest

logger = logging.getLogger("day0.kernels")

#: Seconds that the timing of one kernel may take; most of them the compiler's of the framework.
LIMIT = 1800.0
#: Memory that was freed is given out again without a system call, for the kernel and the framework alike: else page
#: faults of fresh outputs are most of what is measured.
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967295:glibc.malloc.trim_threshold=17179869184"}


def bench(
    kernel: Kernel,
    definition: KernelDefinition,
    *,
    device: Device | None = None,
    repeats: int = 15,
    compiled: bool = True,
) -> Kernel:
    """One backend as `bench_all` times it, without others beside it."""
    return bench_all([kernel], definition, device=device, repeats=repeats, compiled=compiled)[0]


def bench_all(
    kernels: Sequence[Kernel],
    definition: KernelDefinition,
    *,
    device: Device | None = None,
    repeats: int = 15,
    compiled: bool = True,
) -> tuple[Kernel, ...]:
    """Backends of one kernel with their timing: `speedup` over eager and compiled, geometric means and each case, and
    `roofline`, the share of a copy's bandwidth in the case that moves most: of torch's copy, or, on the CPU, of a
    copy past the caches where that is faster. `speedup.run` is the same for those that
    were timed in one run, which alone can be compared.

    A backend that is not accepted is returned as it is: nothing is timed that is not right. One whose results are
    wrong while it is timed, or that tampers with what times it, is rejected.

    Raises:
        EvidenceMissing, Unavailable, BuildFailed: what was accepted is not here any more.
        StageTimeout, Cancelled: the stage's time was up.
    """
    timed = [kernel for kernel in kernels if kernel.verdict is Verdict.PASS]
    found = {kernel.backend: kernel for kernel in kernels}
    if timed:
        answer, died = _run(timed, definition, device, repeats, compiled)
        if len(timed) > 1 and (answer is None or answer.fault):
            # It is not known whose fault it is: each is timed alone, and only the guilty one is rejected.
            for kernel in timed:
                found[kernel.backend] = bench(kernel, definition, device=device, repeats=repeats, compiled=compiled)
        else:
            run = secrets.token_hex(8)
            found |= {kernel.backend: _told(kernel, answer, died, run) for kernel in timed}
    return tuple(found[kernel.backend] for kernel in kernels)


def _run(
    kernels: Sequence[Kernel], definition: KernelDefinition, device: Device | None, repeats: int, compiled: bool
) -> tuple[TimingAnswer | None, str]:
    contenders, environment = [], dict(ENVIRONMENT)
    for kernel in kernels:
        library = library_of(definition, kernel.backend, device)
        contenders.append(Contender(backend=kernel.backend, library=str(library) if library else None))
        package = provider(definition, kernel.backend)
        environment |= package.environment if package else {}
    where = device or usual_device(kernels[0].backend)
    request = TimingRequest(
        folder=str(definition.folder),
        contenders=tuple(contenders),
        device=where.name,
        modules=where.modules,
        key=where.key,
        seed=secrets.randbits(31),
        repeats=repeats,
        dtypes=(timed_dtype(definition),),
        compiled=compiled,
        streaming_copy=_streaming_copy() if where.name == "cpu" else None,
    )
    report(f"timing {definition.name} for {', '.join(kernel.backend for kernel in kernels)}")
    found, died = run_worker("tasks.kernels.timing_worker", request.to_json(), LIMIT, environment)
    try:
        return (None if found is None else TimingAnswer.model_validate(found)), died
    except ValidationError:
        return None, "its process left an answer that cannot be read"


def _streaming_copy() -> str | None:
    try:
        return str(library_of(KernelDefinition(STREAMING_COPY), "cpu"))
    except Unavailable as error:  # packages' kernels need no compiler
        logger.warning("bandwidth is that of torch's copy alone: %s", error)
        return None


def _told(kernel: Kernel, answer: TimingAnswer | None, died: str, run: str) -> Kernel:
    timed = [one for one in answer.timed if one.backend == kernel.backend] if answer else []
    fault = answer.fault or answer.faults.get(kernel.backend) if answer else died
    if answer is None or fault or not timed:
        error = {**kernel.error, "reason": f"while it was timed: {fault or 'nothing was timed'}"}
        return kernel.model_copy(update={"verdict": Verdict.FAIL, "error": error})
    speedup = {**_speedup(timed), "bandwidth": answer.bandwidth, "run": run}
    largest = max(timed, key=lambda one: one.bytes)
    return kernel.model_copy(update={"speedup": speedup, "roofline": largest.roofline})


def timed_dtype(definition: KernelDefinition) -> str:
    """The dtype that models run in."""
    return "bfloat16" if "bfloat16" in definition.file.dtypes else definition.file.dtypes[0]


def _speedup(timed: Sequence[Timed]) -> dict[str, object]:
    compiled = [one.compiled / one.kernel for one in timed if one.compiled]
    return {
        "eager": _mean([one.eager / one.kernel for one in timed]),
        "compiled": _mean(compiled) if compiled else None,
        "cases": [one.to_json() for one in timed],
    }


def _mean(ratios: list[float]) -> float:
    """The geometric mean, which is that of ratios."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
