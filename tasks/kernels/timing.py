"""How fast an accepted kernel is: beside the framework, and as a share of what the memory gives."""

from __future__ import annotations

import math
import secrets

from pydantic import ValidationError

from day0.artifacts.kernels import Kernel
from day0.progress import report
from day0.verdict import Verdict
from tasks.kernels import build as building
from tasks.kernels.acceptance.records import Timed, TimingAnswer, TimingRequest
from tasks.kernels.acceptance.run import has_cuda, run_worker
from tasks.kernels.definition import CompiledBackend, KernelDefinition

#: Seconds that the timing of one kernel may take; most of them the compiler's of the framework.
LIMIT = 1800.0
#: Memory that was freed is given out again without a system call, for the kernel and the framework alike: else page
#: faults of fresh outputs are most of what is measured.
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4294967295:glibc.malloc.trim_threshold=17179869184"}


def bench(kernel: Kernel, definition: KernelDefinition, *, repeats: int = 15, compiled: bool = True) -> Kernel:
    """An accepted kernel with its timing: `speedup` over eager and compiled, geometric means and each case, and
    `roofline`, the share of a copy's bandwidth in the case that moves most.

    A kernel that is not accepted is returned as it is: nothing is timed that is not right. One whose results are
    wrong while it is timed is rejected.

    Raises:
        StageTimeout, Cancelled: the stage's time was up.
    """
    if kernel.verdict is not Verdict.PASS:
        return kernel
    spec = definition.backend(kernel.backend)
    library = building.build(definition, kernel.backend).path if isinstance(spec, CompiledBackend) else None
    request = TimingRequest(
        folder=str(definition.folder),
        backend=kernel.backend,
        library=str(library) if library else None,
        device="cuda" if kernel.backend != "cpu" and has_cuda() else "cpu",
        seed=secrets.randbits(31),
        repeats=repeats,
        dtypes=(timed_dtype(definition),),
        compiled=compiled,
    )
    report(f"timing {definition.name} for {kernel.backend}")
    found, died = run_worker("tasks.kernels.timing_worker", request.to_json(), LIMIT, ENVIRONMENT)
    try:
        answer = TimingAnswer.model_validate(found) if found is not None else None
    except ValidationError:
        answer, died = None, "its process left an answer that cannot be read"
    if answer is None or answer.fault or not answer.timed:
        reason = died if answer is None else answer.fault or "nothing was timed"
        error = {**kernel.error, "reason": f"while it was timed: {reason}"}
        return kernel.model_copy(update={"verdict": Verdict.FAIL, "error": error})
    return kernel.model_copy(update={"speedup": _speedup(answer), "roofline": _largest(answer).roofline})


def timed_dtype(definition: KernelDefinition) -> str:
    """The dtype that models run in."""
    return "bfloat16" if "bfloat16" in definition.file.dtypes else definition.file.dtypes[0]


def _speedup(answer: TimingAnswer) -> dict[str, object]:
    compiled = [timed.compiled / timed.kernel for timed in answer.timed if timed.compiled]
    return {
        "eager": _mean([timed.eager / timed.kernel for timed in answer.timed]),
        "compiled": _mean(compiled) if compiled else None,
        "bandwidth": answer.bandwidth,
        "cases": [timed.to_json() for timed in answer.timed],
    }


def _largest(answer: TimingAnswer) -> Timed:
    return max(answer.timed, key=lambda timed: timed.bytes)


def _mean(ratios: list[float]) -> float:
    """The geometric mean, which is that of ratios."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
