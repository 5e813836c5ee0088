"""A kernel under examination: its arguments are made, it is called, and its results are held against float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.layouts import same_bits, twin
from tasks.kernels.acceptance.poison import Poison
from tasks.kernels.definition import Case, KernelDefinition
from tasks.kernels.load import as_tuple

Tensors = tuple[torch.Tensor, ...]

#: Results of earlier calls that are held on to.
_HELD = 8
#: Calls that tell a wrong result from one that differs each time.
_AGAIN = 5


@dataclass
class Candidate:
    """A kernel as it is called. `out` writes to given outputs: `out(*args, out0=…)`; None where there is no such."""

    call: Callable[..., Any]
    out: Callable[..., Any] | None = None


class Subject:
    """What all checks share; everything random comes from `random` and `generator`."""

    def __init__(
        self, definition: KernelDefinition, candidate: Candidate, seed: int, device: str, poison: Poison
    ) -> None:
        self.definition = definition
        self.candidate = candidate
        self.device = device
        self.poison = poison
        self.random = random.Random(seed)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.calls = 0
        self.earlier: list[tuple[Tensors, Tensors, str]] = []
        """Outputs of earlier calls, copies of them as they were, and what was called."""

    def make(self, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
        """Fresh arguments."""
        made = tuple(self.definition.make(case, dtype, self.generator, self.device))
        if len(made) != len(self.definition.arguments):
            raise ValueError(
                f"make gave {len(made)} arguments, and the operator takes {len(self.definition.arguments)}"
            )
        return made

    def reference(self, args: Sequence[Any]) -> Tensors:
        return as_tuple(self.definition.reference(*args))

    def compared(self, args: Sequence[Any], outputs: Tensors, ours: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """Outputs, the framework's and float64's, as they are to be compared.

        Raises:
            Fault: outputs are such that this fails: an index, say, of nothing that there is.
        """
        exact = tuple(widened(value) for value in args)
        truth = self.reference(exact)
        if compare := self.definition.comparable:
            ours, truth = as_tuple(compare(exact, ours)), as_tuple(compare(exact, truth))
            try:
                outputs = as_tuple(compare(exact, outputs))
            except (IndexError, RuntimeError) as error:
                raise Fault("error", f"results that cannot be compared: {brief(error)}") from error
        return outputs, ours, tuple(t.double() if t.is_floating_point() else t for t in truth)

    def calibrate(self, judge: Judge, case: Case, dtype: torch.dtype) -> None:
        """Show the judge how far the framework is from float64 in one more case."""
        args = self.make(case, dtype)
        ours = self.reference(args)
        _, framework, truth = self.compared(args, ours, ours)
        judge.calibrate(framework, truth)

    def call(self, args: Sequence[Any], place: str, pattern: int | None = None, sizes: Sequence[int] = ()) -> Tensors:
        """The outputs, in memory poisoned by `pattern`; for an operator that writes to arguments those, written to in
        copies of the same layout.

        Raises:
            Fault: it raised an error, or returned something else than tensors.
        """
        arguments = self.definition.arguments
        used = [twin(value) if a.mutated else value for value, a in zip(args, arguments, strict=True)]
        if pattern is None:
            return self.call_on(used, place)
        with self.poison(pattern, sizes):
            return self.call_on(used, place)

    def call_on(self, args: Sequence[Any], place: str) -> Tensors:
        """As `call`, on the arguments themselves."""
        returned = as_tuple(self.guarded(self.candidate.call, args, {}, place))
        if self.definition.schema.mutates:
            return tuple(value for value, a in zip(args, self.definition.arguments, strict=True) if a.mutated)
        if not all(isinstance(output, torch.Tensor) for output in returned):
            raise Fault("structure", f"{place}: it returned something else than tensors")
        return returned

    def guarded(
        self, function: Callable[..., Any], args: Sequence[Any], named: dict[str, torch.Tensor], place: str
    ) -> Any:
        """Raises Fault: the function raised an error."""
        self.calls += 1
        try:
            returned = function(*args, **named)
            if torch.device(self.device).type == "cuda":
                torch.cuda.synchronize()
            return returned
        except Fault as fault:  # of the device's memory: see bridge.py
            raise Fault(fault.kind, f"{place}: {fault}") from fault
        except Exception as error:  # whatever a kernel raises is its fault, by name
            raise Fault("raised", f"{place}: {brief(error)}") from error

    def right(
        self,
        judge: Judge,
        args: Sequence[Any],
        outputs: Tensors,
        ours: Tensors,
        where: str,
        spread: bool = True,
        infinite: bool = False,
    ) -> None:
        """Outputs are near float64; those that are not may be an earlier call's, or another's each time.

        Raises:
            Fault: they are not.
        """
        try:
            judge.compare(*self.compared(args, outputs, ours), where, spread, infinite)
        except Fault as fault:
            for _, copies, place in self.earlier:
                if all(same_bits(now, then) for now, then in zip(outputs, copies, strict=True)):
                    detail = f"{judge.dtype}, {where}: the results are those of an earlier call ({place})"
                    raise Fault("stale", detail) from fault
            for _ in range(_AGAIN):
                again = self.call(args, f"{judge.dtype}, {where}")
                if not all(same_bits(now, then) for now, then in zip(again, outputs, strict=True)):
                    raise Fault("undetermined", f"{fault}; an equal call gives something else") from fault
            raise

    def remember(self, outputs: Tensors, place: str) -> None:
        """Hold some results, with copies: no later call may touch them."""
        if not self.definition.schema.mutates:
            held = (outputs, tuple(output.clone() for output in outputs), place)
            self.earlier = [*self.earlier[1 - _HELD :], held]

    def check_earlier(self) -> None:
        """Raises Fault: an earlier call's result is another now."""
        for held, copies, place in self.earlier:
            for number, (now, then) in enumerate(zip(held, copies, strict=True)):
                if not same_bits(now, then):
                    raise Fault("stale", f"{place}: output {number} was overwritten by a later call")


def widened(value: Any, to: torch.dtype = torch.float64) -> Any:
    """Floating tensors in `to`, or as they are where that is wider. Eight-bit floats are codes, which a scale belongs
    to, and stay."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize > 1:
        return value.to(torch.promote_types(value.dtype, to))
    return value
