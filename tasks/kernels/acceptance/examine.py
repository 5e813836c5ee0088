"""The examination of one kernel: everything that it must withstand, first fault first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tasks.kernels.acceptance.errors import Judge, compare_chunks
from tasks.kernels.acceptance.layouts import LAYOUTS
from tasks.kernels.acceptance.memory_checks import check_layout, check_refusals
from tasks.kernels.acceptance.poison import Poison
from tasks.kernels.acceptance.repeat_checks import CudaStream, check_repeats, check_stream
from tasks.kernels.acceptance.subject import Candidate, Subject
from tasks.kernels.acceptance.value_checks import check_same_addresses, check_special_values
from tasks.kernels.definition import KernelDefinition, label

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

    def __post_init__(self) -> None:
        poison = self.poison or Poison(self.device)
        self.subject = Subject(self.definition, self.candidate, self.seed, self.device, poison)
        usual = [case for case in self.definition.cases if not case.get("huge") and not case.get("bench")]
        most = float("inf") if self.largest is None else self.largest
        self.cases = [case for case in usual if self.definition.bytes(case, 4) <= most]
        self.error |= {"seed": self.seed, "calls": 0, "cases": len(self.cases), "poisoned": poison.works}

    def run(self) -> None:
        """Raises Fault: the kernel is rejected."""
        if not self.cases:
            raise ValueError(f"kernel {self.definition.name} has no case that is neither huge nor timed")
        try:
            for name in self.dtypes or self.definition.file.dtypes:
                self._examine(Judge(name, self.definition.file.tolerance[name]))
            self.subject.check_earlier()
        finally:
            self.error["calls"] = self.subject.calls

    def _examine(self, judge: Judge) -> None:
        """Everything in one dtype. Layouts come first: what they find has the plainest reason."""
        subject, dtype = self.subject, getattr(torch, judge.dtype)
        for case in self.cases:
            subject.calibrate(judge, case, dtype)
        for case in self.cases:
            for layout in LAYOUTS:
                self.say(f"{judge.dtype}, {label(case)}, {layout}")
                check_layout(subject, judge, case, dtype, layout)
            check_refusals(subject, case, dtype, judge.dtype)
            check_special_values(subject, judge, case, dtype)
            check_same_addresses(subject, judge, case, dtype)
        largest = max(self.cases, key=lambda case: self.definition.bytes(case, dtype.itemsize))
        same = check_repeats(subject, judge, largest, dtype)
        self.error["same_for_any_threads"] = same and self.error.get("same_for_any_threads", True)
        if torch.device(self.device).type == "cuda":
            check_stream(subject, judge, largest, dtype, CudaStream())
        judge.finish()
        self.error[judge.dtype] = judge.report()

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
            for usual in self.cases:
                self.subject.calibrate(judge, usual, dtype)
            args = self.subject.make(case, dtype)
            where = label(case)
            outputs = self.subject.call(args, f"{name}, {where}")
            for number, (got, ours) in enumerate(zip(outputs, self.subject.reference(args), strict=True)):
                compare_chunks(got, ours, judge, number, where)
