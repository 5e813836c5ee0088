"""The timing's own process: `python -m tasks.kernels.timing_worker REQUEST ANSWER`.

The backends of a kernel, the framework eager and compiled, and copies take turns within each round: torch's, and on the
CPU one whose stores go past the caches, on all of torch's threads. The bandwidth is the faster one's. Between calls
the caches are emptied and the inputs are replaced, at the same addresses, by one of two sets, and every result is
checked against that set's: what is timed is what is right.
"""

from __future__ import annotations

import importlib
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # replaces functions of torch by its own, which must be before they are looked at

from day0.device_probe import UNOPENED, open_device
from day0.errors import InputError
from day0.files import write_json
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.tampering import Snapshot
from tasks.kernels.acceptance.worker import say
from tasks.kernels.definition import Case, KernelDefinition, label
from tasks.kernels.load import as_tuple
from tasks.kernels.timing_clock import Clock
from tasks.kernels.timing_records import Contender, Timed, TimingAnswer, TimingRequest
from tasks.kernels.timing_ways import COMPILED, EAGER, Entrant, Tensors, Way, asked, backends, check, enter, frameworks

_WARM = 2


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
    return TimingAnswer(fault=fault, faults=stand.faults, bandwidth=stand.clock.bandwidth, timed=kept)


class Stand:
    """Times cases one after another on one device. `faults` says of backends why they are timed no further."""

    def __init__(self, definition: KernelDefinition, request: TimingRequest, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.clock = Clock(request.device, request.streaming_copy)
        self.entrants: list[Entrant] = []
        self.faults: dict[str, str] = {}
        self._definition = definition
        self._request = request
        self._random = random.Random(request.seed)
        self._generator = torch.Generator(request.device).manual_seed(request.seed)

    def enter(self, contender: Contender) -> None:
        """Load a backend."""
        try:
            entrant = enter(self._definition, contender, self._request.key)
            self.snapshot.check()
        except (InputError, Fault) as error:
            self.faults[contender.backend] = str(error) if isinstance(error, InputError) else f"{error.kind}: {error}"
        else:
            self.entrants.append(entrant)

    def time(self, case: Case, dtype: str) -> list[Timed]:
        """Medians of one case, of each backend that has no fault."""
        definition, kind = self._definition, getattr(torch, dtype)
        sets = [self._make(case, kind) for _ in range(2)]
        expected = [as_tuple(definition.reference(*args)) for args in sets]
        args = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in sets[0])
        given = tuple(torch.empty_like(output) for output in expected[0])
        into = given if any(entrant.out for entrant in self.entrants) else None
        ways = [
            *backends(self.entrants, args, given, lambda: Judge(dtype, definition.file.tolerance[dtype])),
            *frameworks(definition, args, into, self._request.compiled),
        ]
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
                self.clock.copy()
        median = {way.name: statistics.median(way.seconds) for way in ways}
        moved = definition.bytes(case, kind.itemsize)
        bandwidth = self.clock.bandwidth
        assert bandwidth is not None
        return [
            Timed(
                backend=way.name,
                case=label(case),
                dtype=dtype,
                kernel=median[way.name],
                eager=median[EAGER],
                compiled=median.get(COMPILED),
                outputs="given" if way.entrant.out or definition.schema.mutates else "fresh",
                answered=way.answered,
                bytes=moved,
                roofline=moved / median[way.name] / bandwidth,
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
        entrant = way.entrant
        seconds, returned = self.clock.time(asked(way, args))
        if not warm:
            way.seconds.append(seconds)
        if entrant is None:
            return
        written = [at for at, argument in enumerate(self._definition.arguments) if argument.mutated]
        found = tuple(args[at] for at in written) or (given if entrant.out else as_tuple(returned))
        check(self._definition, way, args, found, expected, f"{label(case)}, while it is timed")
        if warm:
            self.snapshot.check()

    def _make(self, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
        return tuple(self._definition.make(case, dtype, self._generator, self._request.device))


if __name__ == "__main__":
    main()
