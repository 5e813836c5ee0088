"""The timing's own process: `python -m tasks.kernels.timing_worker REQUEST ANSWER`.

The backends of a kernel, the framework eager and compiled, and copies take turns within each round: torch's, and on the
CPU one whose stores go past the caches, on all of torch's threads. The bandwidth is the faster one's. Between calls
the caches are emptied and the inputs are replaced, at the same addresses, by one of two sets, and every result is
checked against that set's: what is timed is what is right. The clocks are those from before any kernel was loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # replaces functions of torch by its own, which must be before they are looked at

from day0.device_probe import UNOPENED, open_device
from day0.errors import InputError
from day0.files import write_json
from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge, compare_chunks
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.tampering import Snapshot
from tasks.kernels.acceptance.worker import say
from tasks.kernels.definition import Case, CompiledBackend, KernelDefinition, label
from tasks.kernels.load import as_tuple
from tasks.kernels.timing_records import STREAMING_COPY, Contender, Timed, TimingAnswer, TimingRequest

Tensors = tuple[torch.Tensor, ...]

#: What is read between calls: several times the largest cache of a server CPU's socket share, and a GPU's.
_FLUSH = 256 << 20
#: What is copied to measure the bandwidth, each of source and destination.
_COPY = 512 << 20
_WARM = 2
_now, _Event = time.perf_counter, torch.cuda.Event
_EAGER, _COMPILED = "eager", "compiled"


def main() -> None:
    request = TimingRequest.model_validate_json(Path(sys.argv[1]).read_bytes())
    write_json(Path(sys.argv[2]), measure(request).to_json())


def measure(request: TimingRequest) -> TimingAnswer:
    """Time every case that is marked for it. A backend with a fault is left out from there on."""
    definition = KernelDefinition(Path(request.folder))
    if request.compiled:
        importlib.import_module("torch._inductor.compile_fx")  # for the same reason; it takes seconds
    try:
        open_device(request.device, request.modules)
    except UNOPENED as error:
        return TimingAnswer(fault=f"{request.device}: {brief(error)}", faults={}, bandwidth=None, timed=())
    stand = Stand(definition, request, Snapshot())
    timed: list[Timed] = []
    fault = None
    try:
        for contender in request.contenders:
            stand.enter(contender)
        for dtype in request.dtypes:
            for case in (case for case in definition.cases if case.get("bench") and stand.entrants):
                say(f"{dtype}, {label(case)}")
                timed += stand.time(case, dtype)
        stand.snapshot.check()
    except Fault as error:
        fault = f"{error.kind}: {error}"
    kept = tuple(one for one in timed if one.backend not in stand.faults)
    return TimingAnswer(fault=fault, faults=stand.faults, bandwidth=stand.bandwidth, timed=kept)


@dataclass
class Entrant:
    """A backend as it is called: with outputs of its own, or with `out` into given ones."""

    backend: str
    call: Callable[..., Any]
    out: Callable[..., Any] | None


@dataclass
class Way:
    """One way to compute the operator: `run` is what is timed. The framework's have no `entrant`."""

    name: str
    run: Callable[[], Any]
    entrant: Entrant | None = None
    judge: Judge | None = None
    answered: bool = True
    seconds: list[float] = field(default_factory=list)


class Stand:
    """Times cases one after another on one device. `faults` says of backends why they are timed no further."""

    def __init__(self, definition: KernelDefinition, request: TimingRequest, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.entrants: list[Entrant] = []
        self.faults: dict[str, str] = {}
        self._definition = definition
        self._request = request
        self._type = torch.device(request.device).type
        self._random = random.Random(request.seed)
        self._generator = torch.Generator(request.device).manual_seed(request.seed)
        self._flushed = torch.ones(_FLUSH // 4, device=request.device)
        self._source = torch.ones(_COPY // 4, device=request.device)
        self._destination = torch.zeros_like(self._source)
        self._copies = [Way("torch's copy", lambda: self._destination.copy_(self._source))]
        if request.streaming_copy:
            self._copies.append(Way("streaming copy", self._streaming(Path(request.streaming_copy))))

    def _streaming(self, library: Path) -> Callable[[], Any]:
        definition = KernelDefinition(STREAMING_COPY)
        load.load(definition, "cpu", library)
        copy = load.out_operator(definition, "cpu")
        assert copy is not None
        return lambda: copy(self._source, out0=self._destination)

    @property
    def bandwidth(self) -> float | None:
        """Of the fastest copy, bytes a second read and written."""
        medians = [statistics.median(way.seconds) for way in self._copies if way.seconds]
        return 2 * _COPY / min(medians) if medians else None

    def enter(self, contender: Contender) -> None:
        """Load a backend."""
        definition, backend, key = self._definition, contender.backend, self._request.key
        try:
            if isinstance(definition.backend(backend), CompiledBackend):
                load.load(definition, backend, Path(contender.library) if contender.library else None)
                entrant = Entrant(backend, load.operator(definition), load.out_operator(definition, backend))
            else:
                entrant = Entrant(backend, load.beside(definition, backend, key), None)
            self.snapshot.check()
        except (InputError, Fault) as error:
            self.faults[backend] = str(error) if isinstance(error, InputError) else f"{error.kind}: {error}"
        else:
            self.entrants.append(entrant)

    def time(self, case: Case, dtype: str) -> list[Timed]:
        """Medians of one case, of each backend that has no fault."""
        definition, kind = self._definition, getattr(torch, dtype)
        sets = [self._make(case, kind) for _ in range(2)]
        expected = [as_tuple(definition.reference(*args)) for args in sets]
        args = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in sets[0])
        given = tuple(torch.empty_like(output) for output in expected[0])
        ways = [*self._ours(args, given, dtype), *self._frameworks(args, given)]
        values = {way.name: self._values() for way in ways}
        for number in range(_WARM + self._request.repeats):
            order = ways[number % len(ways) :] + ways[: number % len(ways)]
            for way in order:
                chosen = values[way.name][number]
                for value, other in zip(args, sets[chosen], strict=True):
                    if isinstance(value, torch.Tensor):
                        value.copy_(other)
                for output in given:
                    output.view(torch.uint8).fill_(0xFF) if output.numel() else None
                try:
                    self._turn(way, args, given, expected[chosen], case, number < _WARM)
                except Fault as error:
                    if way.entrant is None:
                        raise
                    self.faults[way.entrant.backend] = f"{error.kind}: {error}"
                    self.entrants.remove(way.entrant)
                    ways.remove(way)
            if number >= _WARM:
                for copy in self._copies:
                    copy.seconds.append(self._clock(copy.run)[0])
        median = {way.name: statistics.median(way.seconds) for way in ways}
        moved = definition.bytes(case, kind.itemsize)
        assert self.bandwidth is not None
        return [
            Timed(
                backend=way.name,
                case=label(case),
                dtype=dtype,
                kernel=median[way.name],
                eager=median[_EAGER],
                compiled=median.get(_COMPILED),
                outputs="given" if way.entrant.out or definition.schema.mutates else "fresh",
                answered=way.answered,
                bytes=moved,
                roofline=moved / median[way.name] / self.bandwidth,
            )
            for way in ways
            if way.entrant is not None
        ]

    def _values(self) -> list[int]:
        """Which of two sets each call gets: as often the one as the other, in an order that cannot be known."""
        values = [number % 2 for number in range(_WARM + self._request.repeats)]
        self._random.shuffle(values)
        return values

    def _turn(self, way: Way, args: Sequence[Any], given: Tensors, expected: Tensors, case: Case, warm: bool) -> None:
        """One call, timed unless it warms up.

        Raises:
            Fault: its result is wrong, it raised an error, or it replaced what is relied upon.
        """
        definition, entrant = self._definition, way.entrant
        calls = load.calls(definition, way.name) if entrant else None
        before = calls.answered if calls else 0
        seconds, returned = self._clock(way.run)
        if not warm:
            way.seconds.append(seconds)
        if entrant is None or way.judge is None:
            return
        way.answered = calls is None or calls.answered > before
        written = [at for at, argument in enumerate(definition.arguments) if argument.mutated]
        found = tuple(args[at] for at in written) or (given if entrant.out else as_tuple(returned))
        forms = [
            [(tuple(o.shape), str(o.dtype).removeprefix("torch.")) for o in outputs] for outputs in (found, expected)
        ]
        if forms[0] != forms[1]:
            raise Fault("structure", f"{label(case)}, while it is timed: {forms[0]}, and it must be {forms[1]}")
        if definition.comparable:
            # As acceptance compares them: experts of equal scores in any order, FP8 codes on both sides of a tie.
            wide = tuple(_wide(value) for value in args)
            found, expected = (as_tuple(definition.comparable(wide, outputs)) for outputs in (found, expected))
        for index, (got, ours) in enumerate(zip(found, expected, strict=True)):
            compare_chunks(got, ours, way.judge, index, f"{label(case)}, while it is timed")
        if warm:
            self.snapshot.check()

    def _ours(self, args: Sequence[Any], given: Tensors, dtype: str) -> list[Way]:
        named = {f"out{index}": output for index, output in enumerate(given)}

        def runs(entrant: Entrant) -> Callable[[], Any]:
            def run() -> Any:
                try:
                    return entrant.out(*args, **named) if entrant.out else entrant.call(*args)
                except Exception as error:  # whatever a kernel raises is its fault, by name
                    raise Fault("raised", brief(error)) from error

            return run

        tolerance = self._definition.file.tolerance[dtype]
        return [Way(one.backend, runs(one), one, Judge(dtype, tolerance)) for one in self.entrants]

    def _frameworks(self, args: Sequence[Any], given: Tensors) -> list[Way]:
        """Eager and, where asked, compiled; compiled into given outputs where any of our backends has them given."""
        baseline = self._definition.baseline

        def into(arguments: Sequence[Any], outputs: Tensors) -> None:
            for output, result in zip(outputs, as_tuple(baseline(*arguments)), strict=True):
                output.copy_(result)

        ways = [Way(_EAGER, lambda: baseline(*args))]
        if self._request.compiled:
            torch._dynamo.reset()
            if any(entrant.out for entrant in self.entrants):
                whole = torch.compile(into, dynamic=False)
                run = lambda: whole(args, given)  # noqa: E731
            else:
                whole = torch.compile(baseline, dynamic=False)
                run = lambda: whole(*args)  # noqa: E731
            ways.append(Way(_COMPILED, run))
        return ways

    def _clock(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of one call with cold caches, and what it returned."""
        self._flushed.add_(1.0)
        if self._type != "cuda":
            self._synchronise()
            started = _now()
            returned = run()
            self._synchronise()
            return _now() - started, returned
        first, last = (_Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The device is kept busy until the call has been sent, so that the time of sending it is not in it.
        with contextlib.suppress(RuntimeError):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        first.record()
        returned = run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3, returned

    def _synchronise(self) -> None:
        if self._type != "cpu":
            torch.get_device_module(self._type).synchronize()

    def _make(self, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
        return tuple(self._definition.make(case, dtype, self._generator, self._request.device))


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize < 4
    return value.float() if narrow else value


if __name__ == "__main__":
    main()
