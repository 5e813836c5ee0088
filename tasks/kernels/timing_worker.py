"""The timing's own process: `python -m tasks.kernels.timing_worker REQUEST ANSWER`.

The kernel, the framework eager and compiled, and a plain copy take turns within each round. Between calls the caches
are emptied and the inputs are replaced, at the same addresses, by one of two sets, and every result is checked
against that set's: what is timed is what is right.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # replaces functions of torch by its own, which must be before they are looked at
import torch._inductor.compile_fx

from day0.files import write_json
from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge, compare_chunks
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.records import Timed, TimingAnswer, TimingRequest
from tasks.kernels.acceptance.tampering import Snapshot
from tasks.kernels.acceptance.worker import say
from tasks.kernels.definition import Case, KernelDefinition, label
from tasks.kernels.load import as_tuple

Tensors = tuple[torch.Tensor, ...]

#: What is read between calls: several times the largest cache of a server CPU's socket share, and a GPU's.
_FLUSH = 256 << 20
#: What is copied to measure the bandwidth, each of source and destination.
_COPY = 512 << 20
_WARM = 2


def main() -> None:
    request = TimingRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
    write_json(Path(sys.argv[2]), measure(request).to_json())


def measure(request: TimingRequest) -> TimingAnswer:
    """Time every case that is marked for it."""
    definition = KernelDefinition(Path(request.folder))
    snapshot = Snapshot()
    load.load(definition, request.backend, Path(request.library) if request.library else None)
    stand = Stand(definition, request)
    timed = []
    try:
        for dtype in request.dtypes:
            for case in (case for case in definition.cases if case.get("bench")):
                say(f"{dtype}, {label(case)}")
                timed.append(stand.time(case, dtype))
        snapshot.check()
    except Fault as fault:
        return TimingAnswer(fault=f"{fault.kind}: {fault}", bandwidth=stand.bandwidth, timed=tuple(timed))
    return TimingAnswer(fault=None, bandwidth=stand.bandwidth, timed=tuple(timed))


@dataclass
class Way:
    """One way to compute the operator: `run` is what is timed."""

    name: str
    run: Callable[[], Any]
    seconds: list[float]


class Stand:
    """Times cases one after another on one device."""

    def __init__(self, definition: KernelDefinition, request: TimingRequest) -> None:
        self._definition = definition
        self._request = request
        self._cuda = torch.device(request.device).type == "cuda"
        self._random = random.Random(request.seed)
        self._generator = torch.Generator(request.device).manual_seed(request.seed)
        self._flushed = torch.ones(_FLUSH // 4, device=request.device)
        self._source = torch.ones(_COPY // 4, device=request.device)
        self._destination = torch.zeros_like(self._source)
        self._copies: list[float] = []

    @property
    def bandwidth(self) -> float | None:
        """Of the copy, bytes a second read and written."""
        return 2 * _COPY / statistics.median(self._copies) if self._copies else None

    def time(self, case: Case, dtype: str) -> Timed:
        """Medians of one case.

        Raises:
            Fault: a timed call's result is wrong, or the kernel raised an error.
        """
        definition, kind = self._definition, getattr(torch, dtype)
        sets = [self._make(case, kind) for _ in range(2)]
        expected = [as_tuple(definition.reference(*args)) for args in sets]
        args = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in sets[0])
        given = tuple(torch.empty_like(output) for output in expected[0])
        ways, fresh = self._ways(args, given)
        judge = Judge(dtype, definition.file.tolerance[dtype])
        written = [at for at, argument in enumerate(definition.arguments) if argument.mutated]
        for number in range(_WARM + self._request.repeats):
            order = ways[number % len(ways) :] + ways[: number % len(ways)]
            for way in order:
                chosen = self._random.randrange(2)
                for value, other in zip(args, sets[chosen], strict=True):
                    if isinstance(value, torch.Tensor):
                        value.copy_(other)
                for output in given:
                    output.view(torch.uint8).fill_(0xFF) if output.numel() else None
                seconds, returned = self._clock(way.run)
                if number >= _WARM:
                    way.seconds.append(seconds)
                if way.name == "kernel":
                    found = tuple(args[at] for at in written) or (as_tuple(returned) if fresh else given)
                    for index, (got, ours) in enumerate(zip(found, expected[chosen], strict=True)):
                        compare_chunks(got, ours, judge, index, f"{label(case)}, while it is timed")
            if number >= _WARM:
                self._copies.append(self._clock(lambda: self._destination.copy_(self._source))[0])
        median = {way.name: statistics.median(way.seconds) for way in ways}
        moved = definition.bytes(case, kind.itemsize)
        assert self.bandwidth is not None
        return Timed(
            case=label(case),
            dtype=dtype,
            kernel=median["kernel"],
            eager=median["eager"],
            compiled=median.get("compiled"),
            outputs="fresh" if fresh and not written else "given",
            bytes=moved,
            roofline=moved / median["kernel"] / self.bandwidth,
        )

    def _ways(self, args: Sequence[Any], given: Tensors) -> tuple[list[Way], bool]:
        """Kernel, eager, compiled; and whether the kernel makes its outputs itself."""
        definition = self._definition
        out, call = load.out_operator(definition, self._request.backend), load.operator(definition)
        named = {f"out{index}": output for index, output in enumerate(given)}

        def kernel() -> Any:
            try:
                return out(*args, **named) if out else call(*args)
            except Exception as error:  # whatever a kernel raises is its fault, by name
                raise Fault("raised", brief(error)) from error

        baseline = definition.baseline

        def into(arguments: Sequence[Any], outputs: Tensors) -> None:
            for output, result in zip(outputs, as_tuple(baseline(*arguments)), strict=True):
                output.copy_(result)

        ways = [Way("kernel", kernel, []), Way("eager", lambda: baseline(*args), [])]
        if self._request.compiled:
            torch._dynamo.reset()
            if out or definition.schema.mutates:
                whole = torch.compile(into if not definition.schema.mutates else baseline, dynamic=False)
                run = (lambda: whole(*args)) if definition.schema.mutates else (lambda: whole(args, given))
            else:
                whole = torch.compile(baseline, dynamic=False)
                run = lambda: whole(*args)  # noqa: E731
            ways.append(Way("compiled", run, []))
        return ways, out is None

    def _clock(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of one call with cold caches, and what it returned."""
        self._flushed.add_(1.0)
        if not self._cuda:
            started = time.perf_counter()
            returned = run()
            return time.perf_counter() - started, returned
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The device is kept busy until the call has been sent, so that the time of sending it is not in it.
        with contextlib.suppress(RuntimeError):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        first.record()
        returned = run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3, returned

    def _make(self, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
        return tuple(self._definition.make(case, dtype, self._generator, self._request.device))


if __name__ == "__main__":
    main()
