"""What a kernel must withstand of its arguments' values: NaN and infinity, and other values at the same addresses."""

from __future__ import annotations

import math

import torch

from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.layouts import index_of
from tasks.kernels.acceptance.subject import Subject
from tasks.kernels.definition import Case, label


def check_special_values(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype) -> None:
    """NaN and infinities go where the framework takes them, and nowhere else.

    Raises:
        Fault: they do not.
    """
    for at, argument in enumerate(subject.definition.arguments):
        # In the last element, where tails are, and in any other: what is wrong for a gate may be right for the last.
        chance = subject.random.random() < 0.5
        for value, last in ((math.nan, True), (math.nan, False), (math.inf, chance), (-math.inf, not chance)):
            args = list(subject.make(case, dtype))
            tensor = args[at]
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
                break
            if tensor.dtype.itemsize == 1 or argument.mutated:
                break
            flat = tensor.numel() - 1 if last else subject.random.randrange(tensor.numel())
            tensor[index_of(flat, tensor.shape)] = value
            where = f"{label(case)}, {value} in {argument.name}"
            outputs = subject.call(args, f"{judge.dtype}, {where}")
            subject.right(judge, args, outputs, subject.reference(args), where, infinite=math.isinf(value))


def check_same_addresses(subject: Subject, judge: Judge, case: Case, dtype: torch.dtype) -> None:
    """Other values at the same addresses give other results, and earlier results stay as they were.

    Raises:
        Fault: results are those of the values before, or were overwritten.
    """
    args = subject.make(case, dtype)
    where = f"{label(case)}, new values at the same address"
    first = subject.call(args, f"{judge.dtype}, {where}")
    subject.remember(first, f"{judge.dtype}, {where}")
    for value, other in zip(args, subject.make(case, dtype), strict=True):
        if isinstance(value, torch.Tensor):
            value.copy_(other)
    outputs = subject.call(args, f"{judge.dtype}, {where}")
    subject.right(judge, args, outputs, subject.reference(args), where)
    subject.check_earlier()
