"""Whether a kernel gives the same each time, and is done when it says so: threads, a moment later, other streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.layouts import first_difference, same_bits
from tasks.kernels.acceptance.subject import Subject, Tensors
from tasks.kernels.definition import Case, label

#: Calls of the largest case with several threads that must agree bit for bit, and their numbers of threads.
_REPEATS = 12
_THREADS = (1, 4)
#: Calls go on until threads have worked side by side for so many seconds, in which a race would show, or for so many
#: seconds in all: on a busy machine one thread may be done before the other has begun.
_AT_ONCE, _PATIENCE = 0.002, 0.5
#: Seconds in which work that was put off would show.
_LATER = 0.05
#: Clock cycles for which a stream is kept busy: some 50 ms.
_BUSY = 100_000_000


def check_repeats(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype) -> tuple[bool, float]:
    """One case again and again, with several threads, and a moment later.

    Returns:
        Whether results are the same bit for bit with any number of threads, which is no fault if not; and the seconds
        for which threads were seen to work side by side.

    Raises:
        Fault: equal calls differ, results are wrong, or change after the call.
    """
    args = subject.make(case, dtype)
    ours = subject.reference(args)
    threads = torch.get_num_threads()
    results: list[Tensors] = []
    at_once = 0.0
    try:
        for count in _THREADS:
            torch.set_num_threads(count)
            where = f"{label(case)}, {count} threads"
            first = subject.call(args, f"{judge.dtype}, {where}")
            kept = tuple(output.clone() for output in first)
            at_once = 0.0
            started, calls = time.perf_counter(), 1
            while calls < _REPEATS or (count > 1 and at_once < _AT_ONCE and time.perf_counter() - started < _PATIENCE):
                before = time.process_time() - time.perf_counter()
                outputs = subject.call(args, f"{judge.dtype}, {where}")
                at_once += max(0.0, time.process_time() - time.perf_counter() - before)
                calls += 1
                for number, (left, right) in enumerate(zip(kept, outputs, strict=True)):
                    if not same_bits(left, right):
                        index = first_difference(left, right)
                        detail = f"{judge.dtype}, {where}: output {number} at {index} differs between equal calls"
                        raise Fault("undetermined", detail)
            judge.compare(*subject.compared(args, kept, ours), where)
            results.append(first)
    finally:
        torch.set_num_threads(threads)
    time.sleep(_LATER)
    for number, (now, then) in enumerate(zip(results[-1], kept, strict=True)):
        if not same_bits(now, then):
            raise Fault("late", f"{judge.dtype}, {label(case)}: output {number} changed after the call")
    return all(same_bits(left, right) for left, right in zip(*results, strict=True)), at_once


class Stream(Protocol):
    """A stream of a device that is not its default one."""

    def behind_work(self) -> AbstractContextManager[None]:
        """Make it the current stream, busy for a while, and wait for it on leaving."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on it, after what it is busy with."""


class CudaStream:
    """A CUDA stream, which does not wait for the default one, and a kernel that does nothing for long."""

    @contextmanager
    def behind_work(self) -> Iterator[None]:
        torch.cuda.synchronize()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            torch.cuda._sleep(_BUSY)  # type: ignore[no-untyped-call]
            yield
        side.synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)


def check_stream(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype, stream: Stream) -> None:
    """The kernel's work waits for the current stream's: it must see values that are copied there after a long wait.

    Work on the default stream, or any other that does not wait, is done by then, with the values before. Only a device
    shows it; tests run this function's logic with a stream that is simulated.

    Raises:
        Fault: it does not wait.
    """
    where = f"{label(case)}, on a busy stream"
    args, new = subject.make(case, dtype), subject.make(case, dtype)
    ours = subject.reference(new)
    subject.call(args, f"{judge.dtype}, {where}")  # what is compiled or loaded at a first call is there
    with stream.behind_work():
        for value, other in zip(args, new, strict=True):
            if isinstance(value, torch.Tensor):
                stream.copy(value, other)
        outputs = subject.call_on(args, f"{judge.dtype}, {where}")
    try:
        judge.compare(*subject.compared(new, outputs, ours), where)
    except Fault as fault:
        raise Fault("stream", f"{fault}: the kernel does not wait for the current stream") from fault
