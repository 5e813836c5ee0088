"""What a kernel does with memory, and whether its results are right, in one case, dtype and layout of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.layouts import first_difference, laid, overlap, raw, relay, same_bits
from tasks.kernels.acceptance.poison import PATTERNS
from tasks.kernels.acceptance.subject import Subject, Tensors
from tasks.kernels.definition import Case, label

#: Calls that tell a result of what memory held before from one that differs each time.
_AGAIN = 5


def check_layout(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype, layout: str) -> None:
    """Raises Fault: results are wrong, or memory is touched or left that must not be."""
    definition = subject.definition
    where = f"{label(case)}, {layout}"
    place = f"{judge.dtype}, {where}"
    args = relay(subject.make(case, dtype), definition.arguments, definition.file.contiguous, layout, subject.random)
    ours = subject.reference(args)
    sizes = [output.nbytes for output in ours]
    before = [raw(value).clone() if isinstance(value, torch.Tensor) else None for value in args]
    outputs = subject.call(args, place, PATTERNS[0], sizes)
    _structure(subject, outputs, ours, place)
    _alone(subject, outputs, args, place)
    _unchanged(subject, args, before, place)
    kept = [output.clone() for output in outputs]
    again = subject.call(args, place, PATTERNS[1], sizes)
    for number, (now, then) in enumerate(zip(outputs, kept, strict=True)):
        if not same_bits(now, then):
            raise Fault("stale", f"{place}: output {number} was overwritten by a later call")
    _written(subject, outputs, again, args, sizes, place)
    try:
        subject.right(judge, args, outputs, ours, where, spread=layout != "expanded")
    except Fault as fault:
        if layout == "contiguous":
            raise
        raise Fault(fault.kind, f"{fault} (contiguous arguments gave right results)") from fault
    subject.remember(outputs, place)
    if layout in ("contiguous", "mixed"):
        _given(subject, judge, args, ours, where)


def check_refusals(subject: Subject, case: Case, dtype: torch.dtype, name: str) -> None:
    """Arguments that must be contiguous are refused when they are not.

    Raises:
        Fault: one was taken.
    """
    for at, argument in enumerate(subject.definition.arguments):
        if argument.name not in subject.definition.file.contiguous:
            continue
        args = list(subject.make(case, dtype))
        args[at] = laid(args[at], "strided")
        if args[at].is_contiguous():
            continue
        try:
            subject.candidate.call(*args)
        except Exception:  # any error is a refusal
            continue
        raise Fault("accepted", f"{name}, {label(case)}: {argument.name} is not contiguous, and it was taken")


def _given(subject: Subject, judge: Judge, args: Sequence[Any], ours: Tensors, where: str) -> None:
    """The overload that writes to given outputs."""
    if subject.candidate.out is None:
        return
    made = []
    place = f"{judge.dtype}, {where}, given outputs"
    for pattern in PATTERNS:
        given = tuple(torch.empty_like(output, memory_format=torch.contiguous_format) for output in ours)
        for output in given:
            raw(output).fill_(pattern)
        addresses = [output.data_ptr() for output in given]
        subject.guarded(subject.candidate.out, args, {f"out{n}": output for n, output in enumerate(given)}, place)
        _structure(subject, given, ours, place)
        if addresses != [output.data_ptr() for output in given]:
            raise Fault("structure", f"{place}: an output was moved")
        made.append(given)
    _written(subject, made[0], made[1], None, (), place)
    judge.compare(*subject.compared(args, made[0], ours), f"{where}, given outputs")


def _structure(subject: Subject, outputs: Tensors, ours: Tensors, place: str) -> None:
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
        if not subject.definition.schema.mutates and not got.is_contiguous():
            raise Fault("structure", f"{place}: output {number} is not contiguous")


def _alone(subject: Subject, outputs: Tensors, args: Sequence[Any], place: str) -> None:
    """Outputs share memory with nothing that anyone else holds."""
    if subject.definition.schema.mutates:
        return
    others = [
        (f"the argument {argument.name}", value)
        for value, argument in zip(args, subject.definition.arguments, strict=True)
        if isinstance(value, torch.Tensor)
    ]
    others += [("an earlier call's output", tensor) for held, _, _ in subject.earlier for tensor in held]
    for number, output in enumerate(outputs):
        for what, other in others:
            if overlap(output, other):
                raise Fault("aliased", f"{place}: output {number} shares memory with {what}")
        others.append((f"output {number}", output))


def _unchanged(subject: Subject, args: Sequence[Any], before: Sequence[torch.Tensor | None], place: str) -> None:
    """Arguments that the schema does not mark are as they were, with all that their storage holds."""
    for value, argument, then in zip(args, subject.definition.arguments, before, strict=True):
        if then is not None and not torch.equal(raw(value), then):
            first = int((raw(value) != then).nonzero()[0])
            raise Fault("input", f"{place}: the argument {argument.name} was changed, at byte {first} of its memory")


def _written(
    subject: Subject, outputs: Tensors, again: Tensors, args: Sequence[Any] | None, sizes: Sequence[int], place: str
) -> None:
    """Two calls into memory with different rubbish agree bit for bit."""
    for number, (first, second) in enumerate(zip(outputs, again, strict=True)):
        if same_bits(first, second):
            continue
        index = first_difference(first, second)
        if args is not None:
            for _ in range(_AGAIN):
                for pattern, expected in zip(PATTERNS, (first, second), strict=True):
                    if not same_bits(expected, subject.call(args, place, pattern, sizes)[number]):
                        raise Fault("undetermined", f"{place}: output {number} at {index} differs between equal calls")
        raise Fault(
            "unwritten",
            f"{place}: output {number} at {index} depends on what memory held before: it is not written, or "
            "memory is read before it is written",
        )
