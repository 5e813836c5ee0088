"""The examination of one kernel: everything that it must withstand, first fault first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from day0.artifacts.kernels import MOST_ELEMENTS
from day0.errors import InputError
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.huge import check_far, check_huge
from tasks.kernels.acceptance.layouts import LAYOUTS
from tasks.kernels.acceptance.memory_checks import check_layout, check_refusals
from tasks.kernels.acceptance.poison import Poison
from tasks.kernels.acceptance.repeat_checks import CudaStream, Stream, check_repeats, check_stream
from tasks.kernels.acceptance.subject import Candidate, Subject
from tasks.kernels.acceptance.value_checks import check_same_addresses, check_special_values
from tasks.kernels.definition import Case, KernelDefinition, label

__all__ = ["Candidate", "Examination"]


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
    poison: Poison | None = None
    """Of the memory that the kernel's outputs come from, where that is not the device's (see bridge.py)."""
    stream: Stream | None = None
    """One that is not the device's default; None where there is none, but for CUDA, which has its own."""

    def __post_init__(self) -> None:
        poison = self.poison or Poison(self.device)
        self.subject = Subject(self.definition, self.candidate, self.seed, self.device, poison)
        usual = [case for case in self.definition.cases if not case.get("huge") and not case.get("bench")]
        most = float("inf") if self.largest is None else self.largest
        self.cases = [case for case in usual if self.definition.bytes(case, 4) <= most]
        self.error |= {"seed": self.seed, "calls": 0, "cases": len(self.cases), "poisoned": poison.works}

    def run(self) -> None:
        """
        Raises:
            Fault: the kernel is rejected.
            InputError: there is nothing to hold it against.
        """
        self._check_reference()
        try:
            for name in self.dtypes or self.definition.file.dtypes:
                self._examine(Judge(name, self.definition.file.tolerance[name]))
            self.subject.check_earlier()
        finally:
            self.error["calls"] = self.subject.calls

    def _check_reference(self) -> None:
        """The reference gives as many outputs as the operator has, and numbers in some case."""
        if not self.cases:
            raise InputError(f"{self.definition.folder / 'inputs.py'}: no case moves {self.largest} bytes or less")
        schema, dtype = self.definition.schema, getattr(torch, self.definition.file.dtypes[0])
        wanted = schema.outputs or sum(argument.mutated for argument in schema.arguments)
        for case in self.cases:
            args = self.definition.make(case, dtype, torch.Generator(self.device), self.device)
            outputs = self.subject.reference(args)
            if len(outputs) != wanted:
                at = self.definition.folder / "reference.py"
                raise InputError(f"{at}: it gives {len(outputs)} outputs, and the operator has {wanted}")
            if all(output.numel() for output in outputs):
                return
        raise InputError(f"{self.definition.folder / 'inputs.py'}: no case gives a number in every output to compare")

    def _examine(self, judge: Judge) -> None:
        """Everything in one dtype. All cases' layouts come first: what they find has the plainest reason."""
        subject, dtype = self.subject, getattr(torch, judge.dtype)
        for case in self.cases:
            subject.calibrate(judge, case, dtype)
        for case in self.cases:
            for layout in LAYOUTS:
                self.say(f"{judge.dtype}, {label(case)}, {layout}")
                check_layout(subject, judge, case, dtype, layout)
        for case in self.cases:
            self.say(f"{judge.dtype}, {label(case)}, other values")
            check_refusals(subject, case, dtype, judge.dtype)
            check_special_values(subject, judge, case, dtype)
            check_same_addresses(subject, judge, case, dtype)
        largest = self._largest(dtype)
        same, at_once = check_repeats(subject, judge, largest, dtype)
        self.error["same_for_any_threads"] = same and self.error.get("same_for_any_threads", True)
        self.error["threads_at_once"] = max(at_once, self.error.get("threads_at_once", 0.0))
        stream = CudaStream() if torch.device(self.device).type == "cuda" else self.stream
        if stream is not None:
            check_stream(subject, judge, largest, dtype, stream)
        judge.finish()
        self.error[judge.dtype] = judge.report()

    def huge(self, available: int) -> None:
        """Offsets and sizes beyond 2^31 elements, in the narrowest dtype, where `available` bytes of memory are enough.

        `error["elements"]` is the most elements that a tensor may have by what was run, None where huge cases were;
        `error["not_run"]` says what was not.

        Raises:
            Fault: a result is wrong.
        """
        huge = [case for case in self.definition.cases if case.get("huge")]
        left = ["no case is huge"] if not huge else []
        if self.largest is not None:
            left += [f"{label(case)}: moves more than {self.largest} bytes" for case in huge]
        else:
            dtypes = self.dtypes or self.definition.file.dtypes
            name = min(dtypes, key=lambda name: getattr(torch, name).itemsize)
            judge, dtype = Judge(name, self.definition.file.tolerance[name]), getattr(torch, name)
            for case in self.cases:
                self.subject.calibrate(judge, case, dtype)
            checks: list[tuple[Any, Case]] = [(check_far, self._largest(dtype)), *((check_huge, case) for case in huge)]
            for check, one in checks:
                self.say(f"{name}, {label(one)}, beyond 2^31 elements")
                if why := check(self.subject, judge, one, dtype, available):
                    left.append(why)
        self.error |= {"not_run": left, "elements": MOST_ELEMENTS if left else None}

    def _largest(self, dtype: torch.dtype) -> Case:
        return max(self.cases, key=lambda case: self.definition.bytes(case, dtype.itemsize))
