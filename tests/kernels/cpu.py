"""The C++ kernels as their tests run them: built once for all sessions, called with each instruction set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.subject import widened
from tasks.kernels.build import build
from tasks.kernels.definition import Case, KernelDefinition, label
from tasks.kernels.find import kernels_folder
from tasks.kernels.load import as_tuple

#: A machine that lacks one runs the next below it.
INSTRUCTION_SETS = ("avx512_bf16", "avx512", "avx2", "portable")
#: Built libraries outlive the session; they are found by what they are made of.
BUILT = Path.home() / ".cache" / "day0-tests"


@cache
def kernel(name: str) -> KernelDefinition:
    """The kernel's definition, its operator loaded."""
    definition = KernelDefinition(kernels_folder() / name)
    with mock.patch.dict(os.environ, {"DAY0_HOME": str(BUILT)}):
        library = build(definition, "cpu").path
    load.load(definition, "cpu", library)
    return definition


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    with mock.patch.dict(os.environ, {"DAY0_CPU_ISA": name}):
        yield


def called(definition: KernelDefinition, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """The operator's outputs, or, of one that writes to arguments, what copies of those hold afterwards."""
    if not definition.schema.mutates:
        return as_tuple(load.operator(definition)(*args))
    given = tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)
    load.operator(definition)(*given)
    return tuple(arg for arg, about in zip(given, definition.arguments, strict=True) if about.mutated)


def quick_cases(definition: KernelDefinition) -> list[Case]:
    return [case for case in definition.cases if not case.get("bench") and not case.get("huge")]


def check_all_cases(name: str) -> None:
    """Every case and dtype with every instruction set: shapes and dtypes as the reference's, errors against float64.

    Raises Fault where a result is further from float64 than kernel.yaml allows.
    """
    definition = kernel(name)
    for dtype in definition.file.dtypes:
        judges = {isa: Judge(dtype, definition.file.tolerance[dtype]) for isa in INSTRUCTION_SETS}
        for seed, case in enumerate(quick_cases(definition)):
            args = definition.make(case, getattr(torch, dtype), torch.Generator().manual_seed(seed), "cpu")
            wide = tuple(map(widened, args))
            framework, truth = definition.reference(*args), definition.reference(*wide)
            ours, compared = (compare_form(definition, wide, outputs) for outputs in (framework, truth))
            exact = tuple(t.double() if t.is_floating_point() else t for t in compared)
            for isa, judge in judges.items():
                with instruction_set(isa):
                    outputs = called(definition, args)
                assert [(o.shape, o.dtype) for o in outputs] == [(o.shape, o.dtype) for o in framework], label(case)
                judge.calibrate(ours, exact)
                judge.compare(compare_form(definition, wide, outputs), ours, exact, f"{isa}, {label(case)}")
        for judge in judges.values():
            judge.finish()


def compare_form(definition: KernelDefinition, wide: tuple[Any, ...], outputs: Any) -> tuple[torch.Tensor, ...]:
    return as_tuple(definition.comparable(wide, outputs) if definition.comparable else outputs)


def check_layouts(name: str) -> None:
    """Rows at a distance, transposed and offset arguments give bit for bit what contiguous ones do."""
    definition = kernel(name)
    for seed, case in enumerate(quick_cases(definition)):
        args = definition.make(case, torch.float32, torch.Generator().manual_seed(seed), "cpu")
        expected = called(definition, args)
        for changed in (spaced, transposed):
            found = called(definition, tuple(changed(arg) if isinstance(arg, torch.Tensor) else arg for arg in args))
            for got, wanted in zip(found, expected, strict=True):
                assert torch.equal(as_bytes(got), as_bytes(wanted)), f"{changed.__name__}: {label(case)}"


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor


def spaced(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as the middle of a larger tensor, with others around each row."""
    room = torch.full([size + 3 for size in tensor.shape], 1, dtype=torch.float32).to(tensor.dtype)
    inside = room[tuple(slice(1, 1 + size) for size in tensor.shape)]
    return inside.copy_(tensor)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with the first dimension innermost in memory."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


def fresh(definition: KernelDefinition, index: int, dtype: torch.dtype = torch.float32) -> list[Any]:
    """Arguments of the case at `index`, to be changed by a test."""
    return list(definition.make(definition.cases[index], dtype, torch.Generator().manual_seed(index), "cpu"))
