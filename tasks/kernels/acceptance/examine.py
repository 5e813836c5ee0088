"""The examination of one kernel: everything that it must withstand, first fault first."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tasks.kernels.acceptance.errors import Judge, compare_chunks
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.layouts import (
    LAYOUTS,
    first_difference,
    index_of,
    laid,
    overlap,
    raw,
    relay,
    same_bits,
    twin,
)
from tasks.kernels.acceptance.poison import PATTERNS, Poison
from tasks.kernels.definition import Case, KernelDefinition, label
from tasks.kernels.load import as_tuple

Tensors = tuple[torch.Tensor, ...]

#: Calls of the largest case with several threads that must agree bit for bit, and their numbers of threads.
_REPEATS = 12
_THREADS = (1, 4)
#: Seconds in which work that was put off would show.
_LATER = 0.05


@dataclass
class Candidate:
    """A kernel as it is called. `out` writes to given outputs: `out(*args, out0=…)`; None where there is no such."""

    call: Callable[..., Any]
    out: Callable[..., Any] | None = None


@dataclass
class Examination:
    """One run over a kernel; `error` fills as it goes on, so that it says something of a kernel that is rejected."""

    definition: KernelDefinition
    candidate: Candidate
    seed: int
    device: str = "cpu"
    largest: int | None = None
    dtypes: tuple[str, ...] | None = None
    say: Callable[[str], None] = lambda _: None
    error: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._generator = torch.Generator(self.device).manual_seed(self.seed)
        self._poison = Poison(self.device)
        self._earlier: list[tuple[Tensors, Tensors, str]] = []
        usual = [case for case in self.definition.cases if not case.get("huge") and not case.get("bench")]
        most = float("inf") if self.largest is None else self.largest
        self.cases = [case for case in usual if self.definition.bytes(case, 4) <= most]
        self.error |= {"seed": self.seed, "calls": 0, "cases": len(self.cases), "poisoned": self._poison.works}

    def run(self) -> None:
        """Raises Fault: the kernel is rejected."""
        if not self.cases:
            raise ValueError(f"kernel {self.definition.name} has no case that is neither huge nor timed")
        for name in self.dtypes or self.definition.file.dtypes:
            judge = Judge(name, self.definition.file.tolerance[name])
            dtype = getattr(torch, name)
            self._calibrate(judge, dtype)
            for case in self.cases:
                for layout in LAYOUTS:
                    self._examine(judge, case, dtype, layout)
                self._refuses(case, dtype, name)
                self._special_values(judge, case, dtype)
                self._same_addresses(judge, case, dtype)
            self._repeated(judge, dtype)
            judge.finish()
            self.error[name] = judge.report()
        self._check_earlier()

    def huge(self, available: int) -> None:
        """Run the huge cases in the narrowest dtype, once each, where `available` bytes of memory are enough.

        Raises:
            Fault: one is wrong.
        """
        dtype = min((getattr(torch, name) for name in self.definition.file.dtypes), key=lambda d: d.itemsize)
        name = str(dtype).removeprefix("torch.")
        for case in (case for case in self.definition.cases if case.get("huge")):
            # Inputs are made in float32, and the reference holds several tensors of it at once.
            needed = int(self.definition.bytes(case, dtype.itemsize) * 4 / dtype.itemsize * 2.5)
            if needed > available:
                self.error.setdefault("not_run", []).append(f"{label(case)}: needs some {needed / 2**30:.0f} GiB")
                continue
            judge = Judge(name, self.definition.file.tolerance[name])
            self._calibrate(judge, dtype)
            args = self._make(case, dtype)
            where = label(case)
            outputs = self._call(args, f"{name}, {where}")
            for number, (got, ours) in enumerate(zip(outputs, self._reference(args), strict=True)):
                compare_chunks(got, ours, judge, number, where)

    # One case, dtype and layout ---------------------------------------------------------------------------------

    def _examine(self, judge: Judge, case: Case, dtype: torch.dtype, layout: str) -> None:
        where = f"{label(case)}, {layout}"
        place = f"{judge.dtype}, {where}"
        self.say(place)
        args = relay(
            self._make(case, dtype), self.definition.arguments, self.definition.file.contiguous, layout, self._random
        )
        ours = self._reference(args)
        sizes = [output.nbytes for output in ours]
        before = [raw(value).clone() if isinstance(value, torch.Tensor) else None for value in args]
        outputs = self._call(args, place, PATTERNS[0], sizes)
        self._structure(outputs, ours, place)
        self._alone(outputs, args, place)
        self._unchanged(args, before, place)
        again = self._call(args, place, PATTERNS[1], sizes)
        self._written(outputs, again, args, sizes, place)
        try:
            self._right(judge, args, outputs, ours, where, spread=layout != "expanded")
        except Fault as fault:
            if layout == "contiguous":
                raise
            raise Fault(fault.kind, f"{fault} (contiguous arguments gave right results)") from fault
        self._remember(outputs, place)
        if layout in ("contiguous", "mixed"):
            self._given(judge, args, ours, where)

    def _given(self, judge: Judge, args: Sequence[Any], ours: Tensors, where: str) -> None:
        """The overload that writes to given outputs."""
        if self.candidate.out is None:
            return
        made = []
        place = f"{judge.dtype}, {where}, given outputs"
        for pattern in PATTERNS:
            given = tuple(torch.empty_like(output, memory_format=torch.contiguous_format) for output in ours)
            for output in given:
                raw(output).fill_(pattern)
            addresses = [output.data_ptr() for output in given]
            self._guarded(self.candidate.out, args, {f"out{n}": output for n, output in enumerate(given)}, place)
            self._structure(given, ours, place)
            if addresses != [output.data_ptr() for output in given]:
                raise Fault("structure", f"{place}: an output was moved")
            made.append(given)
        self._written(made[0], made[1], None, (), place)
        judge.compare(*self._compared(args, made[0], ours), f"{where}, given outputs")

    def _structure(self, outputs: Tensors, ours: Tensors, place: str) -> None:
        if len(outputs) != len(ours):
            raise Fault("structure", f"{place}: {len(outputs)} outputs, and there must be {len(ours)}")
        for number, (got, own) in enumerate(zip(outputs, ours, strict=True)):
            for what, left, right in (
                ("shape", tuple(got.shape), tuple(own.shape)),
                ("dtype", got.dtype, own.dtype),
                ("device", got.device, own.device),
            ):
                if left != right:
                    raise Fault("structure", f"{place}: output {number} has {what} {left}, and it must be {right}")
            if not self.definition.schema.mutates and not got.is_contiguous():
                raise Fault("structure", f"{place}: output {number} is not contiguous")

    def _alone(self, outputs: Tensors, args: Sequence[Any], place: str) -> None:
        """Outputs share memory with nothing that anyone else holds."""
        if self.definition.schema.mutates:
            return
        others = [
            (f"the argument {argument.name}", value)
            for value, argument in zip(args, self.definition.arguments, strict=True)
            if isinstance(value, torch.Tensor)
        ]
        others += [("an earlier call's output", tensor) for held, _, _ in self._earlier for tensor in held]
        for number, output in enumerate(outputs):
            for what, other in others:
                if overlap(output, other):
                    raise Fault("aliased", f"{place}: output {number} shares memory with {what}")
            others.append((f"output {number}", output))

    def _unchanged(self, args: Sequence[Any], before: Sequence[torch.Tensor | None], place: str) -> None:
        """Arguments that the schema does not mark are as they were, with all that their storage holds."""
        for value, argument, then in zip(args, self.definition.arguments, before, strict=True):
            if then is not None and not torch.equal(raw(value), then):
                first = int((raw(value) != then).nonzero()[0])
                raise Fault(
                    "input", f"{place}: the argument {argument.name} was changed, at byte {first} of its memory"
                )

    def _written(
        self, outputs: Tensors, again: Tensors, args: Sequence[Any] | None, sizes: Sequence[int], place: str
    ) -> None:
        """Two calls into memory with different rubbish agree bit for bit."""
        for number, (first, second) in enumerate(zip(outputs, again, strict=True)):
            if same_bits(first, second):
                continue
            index = first_difference(first, second)
            if args is not None:
                repeated = self._call(args, place, PATTERNS[0], sizes)[number]
                if not same_bits(first, repeated):
                    raise Fault("undetermined", f"{place}: output {number} at {index} differs between equal calls")
            raise Fault(
                "unwritten",
                f"{place}: output {number} at {index} depends on what memory held before: it is not written, or "
                "memory is read before it is written",
            )

    # What a case must withstand beside layouts ------------------------------------------------------------------

    def _refuses(self, case: Case, dtype: torch.dtype, name: str) -> None:
        """Arguments that must be contiguous are refused when they are not."""
        for at, argument in enumerate(self.definition.arguments):
            if argument.name not in self.definition.file.contiguous:
                continue
            args = list(self._make(case, dtype))
            args[at] = laid(args[at], "strided")
            if args[at].is_contiguous():
                continue
            try:
                self.candidate.call(*args)
            except Exception:  # any error is a refusal
                continue
            raise Fault("accepted", f"{name}, {label(case)}: {argument.name} is not contiguous, and it was taken")

    def _special_values(self, judge: Judge, case: Case, dtype: torch.dtype) -> None:
        """NaN and infinities go where the framework takes them, and nowhere else."""
        for at, argument in enumerate(self.definition.arguments):
            for value in (float("nan"), float("inf"), float("-inf")):
                args = list(self._make(case, dtype))
                tensor = args[at]
                if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
                    break
                if tensor.dtype.itemsize == 1 or argument.mutated:
                    break
                # The last element, where tails are, or any other.
                flat = tensor.numel() - 1 if self._random.random() < 0.5 else self._random.randrange(tensor.numel())
                tensor[index_of(flat, tensor.shape)] = value
                where = f"{label(case)}, {value} in {argument.name}"
                outputs = self._call(args, f"{judge.dtype}, {where}")
                self._right(judge, args, outputs, self._reference(args), where)

    def _same_addresses(self, judge: Judge, case: Case, dtype: torch.dtype) -> None:
        """Other values at the same addresses give other results, and earlier results stay as they were."""
        args = self._make(case, dtype)
        where = f"{label(case)}, new values at the same address"
        first = self._call(args, f"{judge.dtype}, {where}")
        self._remember(first, f"{judge.dtype}, {where}")
        for value, other in zip(args, self._make(case, dtype), strict=True):
            if isinstance(value, torch.Tensor):
                value.copy_(other)
        outputs = self._call(args, f"{judge.dtype}, {where}")
        self._right(judge, args, outputs, self._reference(args), where)
        self._check_earlier()

    def _repeated(self, judge: Judge, dtype: torch.dtype) -> None:
        """The largest case again and again, with several threads, and a moment later."""
        case = max(self.cases, key=lambda case: self.definition.bytes(case, dtype.itemsize))
        args = self._make(case, dtype)
        ours = self._reference(args)
        threads = torch.get_num_threads()
        same = True
        results: list[Tensors] = []
        try:
            for count in _THREADS:
                torch.set_num_threads(count)
                where = f"{label(case)}, {count} threads"
                found = [self._call(args, f"{judge.dtype}, {where}") for _ in range(_REPEATS)]
                kept = [tuple(output.clone() for output in outputs) for outputs in found[:1]]
                for outputs in found[1:]:
                    for number, (left, right) in enumerate(zip(kept[0], outputs, strict=True)):
                        if not same_bits(left, right):
                            index = first_difference(left, right)
                            detail = f"{judge.dtype}, {where}: output {number} at {index} differs between equal calls"
                            raise Fault("undetermined", detail)
                judge.compare(*self._compared(args, kept[0], ours), where)
                results.append(found[0])
            same = all(same_bits(left, right) for left, right in zip(*results, strict=True))
        finally:
            torch.set_num_threads(threads)
        self.error["same_for_any_threads"] = same and self.error.get("same_for_any_threads", True)
        copies = [output.clone() for output in results[-1]]
        time.sleep(_LATER)
        for number, (now, then) in enumerate(zip(results[-1], copies, strict=True)):
            if not same_bits(now, then):
                raise Fault("late", f"{judge.dtype}, {label(case)}: output {number} changed after the call")

    def _right(
        self, judge: Judge, args: Sequence[Any], outputs: Tensors, ours: Tensors, where: str, spread: bool = True
    ) -> None:
        """Outputs are near float64; those that are not may be an earlier call's."""
        try:
            judge.compare(*self._compared(args, outputs, ours), where, spread)
        except Fault as fault:
            for _, copies, place in self._earlier:
                if all(same_bits(now, then) for now, then in zip(outputs, copies, strict=True)):
                    detail = f"{judge.dtype}, {where}: the results are those of an earlier call ({place})"
                    raise Fault("stale", detail) from fault
            raise

    def _remember(self, outputs: Tensors, place: str) -> None:
        """Hold some results, with copies: no later call may touch them."""
        if self.definition.schema.mutates:
            return
        self._earlier = [*self._earlier[-7:], (outputs, tuple(output.clone() for output in outputs), place)]

    def _check_earlier(self) -> None:
        for held, copies, place in self._earlier:
            for number, (now, then) in enumerate(zip(held, copies, strict=True)):
                if not same_bits(now, then):
                    raise Fault("stale", f"{place}: output {number} was overwritten by a later call")

    # Calls ------------------------------------------------------------------------------------------------------

    def _calibrate(self, judge: Judge, dtype: torch.dtype) -> None:
        for case in self.cases:
            args = self._make(case, dtype)
            ours = self._reference(args)
            compared = self._compared(args, ours, ours)
            judge.calibrate(compared[1], compared[2])

    def _call(self, args: Sequence[Any], place: str, pattern: int | None = None, sizes: Sequence[int] = ()) -> Tensors:
        """The outputs; for an operator that writes to arguments those, written to in copies of the same layout."""
        arguments = self.definition.arguments
        used = [twin(value) if a.mutated else value for value, a in zip(args, arguments, strict=True)]
        if pattern is None:
            returned = self._guarded(self.candidate.call, used, {}, place)
        else:
            with self._poison(pattern, sizes):
                returned = self._guarded(self.candidate.call, used, {}, place)
        if self.definition.schema.mutates:
            return tuple(value for value, a in zip(used, arguments, strict=True) if a.mutated)
        if not all(isinstance(output, torch.Tensor) for output in as_tuple(returned)):
            raise Fault("structure", f"{place}: it returned something else than tensors")
        return as_tuple(returned)

    def _guarded(
        self, function: Callable[..., Any], args: Sequence[Any], named: dict[str, torch.Tensor], place: str
    ) -> Any:
        self.error["calls"] += 1
        try:
            returned = function(*args, **named)
            if torch.device(self.device).type == "cuda":
                torch.cuda.synchronize()
            return returned
        except Exception as error:  # whatever a kernel raises is its fault, by name
            raise Fault("raised", f"{place}: {brief(error)}") from error

    def _make(self, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
        made = tuple(self.definition.make(case, dtype, self._generator, self.device))
        if len(made) != len(self.definition.arguments):
            raise ValueError(
                f"make gave {len(made)} arguments, and the operator takes {len(self.definition.arguments)}"
            )
        return made

    def _reference(self, args: Sequence[Any]) -> Tensors:
        return as_tuple(self.definition.reference(*args))

    def _compared(self, args: Sequence[Any], outputs: Tensors, ours: Tensors) -> tuple[Tensors, Tensors, Tensors]:
        """Outputs, the framework's and float64's, as they are to be compared."""
        exact = tuple(widened(value) for value in args)
        truth = self._reference(exact)
        if compare := self.definition.comparable:
            outputs, ours, truth = (as_tuple(compare(exact, results)) for results in (outputs, ours, truth))
        return outputs, ours, tuple(t.double() if t.is_floating_point() else t for t in truth)


def widened(value: Any) -> Any:
    """Floating tensors in float64. Eight-bit floats are codes, which a scale belongs to, and stay."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize > 1:
        return value.double()
    return value
