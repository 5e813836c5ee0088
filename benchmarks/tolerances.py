"""How far honest and wrong implementations are from float64: what the tolerances of each kernel.yaml rest on.

    python -m benchmarks.tolerances [--seeds 1000] [--seconds 60] [--dtype float32] [--variants] [KERNEL...]

Honest are our C++ kernels with each instruction set, which sum in other orders and approximate functions;
with `--variants` the twelve honest differences of residual + RMSNorm in tests/kernels/faults. Wrong are the reference
with its results cut off toward zero or, in float32, with arguments of TF32's ten bits of fraction or bfloat16's seven;
with `--variants` the planted faults of rounding and accumulation. Prints JSON: of each kernel, dtype and implementation
the seeds, the largest ratio of mean and of largest errors beside what kernel.yaml allows, and how many
seeds were rejected by that. Exit code 1 where an honest one was or a wrong one was not. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.subject import Tensors, widened
from tasks.kernels.build import build
from tasks.kernels.definition import KernelDefinition, Tolerance
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.load import as_tuple
from tests.kernels.cpu import INSTRUCTION_SETS, called, instruction_set, quick_cases
from tests.kernels.faults.trial import VARIANTS, make_folder

Implementation = Callable[[KernelDefinition, tuple[Any, ...]], Tensors]

#: Planted faults that are of rounding, where they are faults.
_OF_ROUNDING = {"float32": ("bf16_accumulation",), "bfloat16": ("wrong_rounding", "bf16_accumulation")}
#: Allows anything, so that ratios are found and not judged.
_ANY = {"ratio": 1e30, "max_ratio": 1e30, "atol": 0.0, "reason": "of the measurement"}


@dataclass
class Found:
    """Over seeds: the largest ratio of mean and of largest errors, less `atol`, and faults by kernel.yaml."""

    seeds: int = 0
    mean: float = 0.0
    largest: float = 0.0
    least: float = float("inf")
    """The least of a seed's largest ratio: what is sure to be seen of a wrong one."""
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60, help="at most, for each kernel and dtype")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--variants", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if args.variants:
            definitions = [KernelDefinition(make_folder(Path(place)))]
        else:
            definitions = [find_kernel(name) for name in args.kernels or kernel_names()]
        report = {}
        sound = bool(definitions)
        for definition in definitions:
            load.load(definition, "cpu", build(definition, "cpu").path)
            for dtype in args.dtype or definition.file.dtypes:
                honest, wrong = measure(definition, dtype, args.seeds, args.seconds, args.variants)
                report[f"{definition.name}, {dtype}"] = _described(definition, dtype, honest, wrong)
                sound &= not any(found.rejected for found in honest.values())
                sound &= all(found.rejected == found.seeds for found in wrong.values())
    json.dump(report, sys.stdout, indent=2)
    print()
    sys.exit(not sound)


def _described(
    definition: KernelDefinition, dtype: str, honest: dict[str, Found], wrong: dict[str, Found]
) -> dict[str, Any]:
    tolerance = definition.file.tolerance[dtype]
    for key, found in (*honest.items(), *wrong.items()):
        print(
            f"{definition.name} {dtype} {key}: mean {found.mean:.3g} of {tolerance.ratio:g}, largest "
            f"{found.largest:.3g} (least {found.least:.3g}) of {tolerance.most:g}, "
            f"rejected {found.rejected} of {found.seeds}",
            file=sys.stderr,
            flush=True,
        )
    return {
        "allowed": {"mean": tolerance.ratio, "largest": tolerance.most, "atol": tolerance.atol},
        "honest": {key: vars(found) for key, found in honest.items()},
        "wrong": {key: vars(found) for key, found in wrong.items()},
    }


def measure(
    definition: KernelDefinition, dtype: str, seeds: int, seconds: float, variants: bool
) -> tuple[dict[str, Found], dict[str, Found]]:
    """Honest and wrong implementations in one dtype, with as many seeds as the time allows."""
    honest = _variants(VARIANTS["honest"]) if variants else dict(_honest())
    wrong = _variants(_OF_ROUNDING[dtype]) if variants else dict(_wrong(dtype))
    found: dict[str, Found] = {name: Found() for name in (*honest, *wrong)}
    started = time.monotonic()
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        made = [definition.make(case, getattr(torch, dtype), generator, "cpu") for case in quick_cases(definition)]
        truths = [_compared(definition, args) for args in made]
        for name, implementation in {**honest, **wrong}.items():
            results = [implementation(definition, args) for args in made]
            _judge(found[name], definition, dtype, made, truths, results)
        if time.monotonic() - started > seconds:
            break
    return {name: found[name] for name in honest}, {name: found[name] for name in wrong}


def _judge(
    found: Found,
    definition: KernelDefinition,
    dtype: str,
    made: list[tuple[Any, ...]],
    truths: list[tuple[Tensors, Tensors]],
    results: list[Tensors],
) -> None:
    tolerance = definition.file.tolerance[dtype]
    for judge in (Judge(dtype, tolerance), Judge(dtype, Tolerance(**{**_ANY, "atol": tolerance.atol}))):
        for framework, truth in truths:
            judge.calibrate(framework, truth)
        try:
            for number, (args, (framework, truth), outputs) in enumerate(zip(made, truths, results, strict=True)):
                judge.compare(_form(definition, args, outputs), framework, truth, f"case {number}")
            judge.finish()
        except Fault as fault:
            if judge.tolerance is tolerance:
                found.rejected += 1
                found.reasons = [*found.reasons[:2], f"{fault.kind}: {fault}"]
    found.seeds += 1
    found.mean = max([found.mean, *(sums.worst_mean for sums in judge.sums.values())])
    largest = max([0.0, *(sums.worst for sums in judge.sums.values())])
    found.largest, found.least = max(found.largest, largest), min(found.least, largest)


def _compared(definition: KernelDefinition, args: tuple[Any, ...]) -> tuple[Tensors, Tensors]:
    """The framework's results and float64's, as they are compared."""
    ours = as_tuple(definition.reference(*args))
    truth = as_tuple(definition.reference(*map(widened, args)))
    framework, exact = _form(definition, args, ours), _form(definition, args, truth)
    return framework, tuple(t.double() if t.is_floating_point() else t for t in exact)


def _form(definition: KernelDefinition, args: tuple[Any, ...], outputs: Tensors) -> Tensors:
    exact = tuple(map(widened, args))
    return as_tuple(definition.comparable(exact, outputs)) if definition.comparable else outputs


def _honest() -> Iterator[tuple[str, Implementation]]:
    def with_set(name: str) -> Implementation:
        def run(definition: KernelDefinition, args: tuple[Any, ...]) -> Tensors:
            with instruction_set(name):
                return called(definition, args)

        return run

    for name in INSTRUCTION_SETS:
        yield name, with_set(name)


def _variants(names: Sequence[str]) -> dict[str, Implementation]:
    def variant(name: str) -> Implementation:
        def run(definition: KernelDefinition, args: tuple[Any, ...]) -> Tensors:
            os.environ["VARIANT"] = name
            return called(definition, args)

        return run

    return {name: variant(name) for name in names}


def _wrong(dtype: str) -> Iterator[tuple[str, Implementation]]:
    def cut(definition: KernelDefinition, args: tuple[Any, ...]) -> Tensors:
        ours = as_tuple(definition.reference(*args))
        truth = as_tuple(definition.reference(*map(widened, args)))
        return tuple(_toward_zero(exact, own) for exact, own in zip(truth, ours, strict=True))

    def coarse(bits: int) -> Implementation:
        def run(definition: KernelDefinition, args: tuple[Any, ...]) -> Tensors:
            return as_tuple(definition.reference(*(_coarse(value, bits) for value in args)))

        return run

    if dtype != "float32":  # whose last bit no honest order of summation keeps
        yield "cut toward zero", cut
    else:
        yield "TF32", coarse(10)
        yield "bfloat16", coarse(7)


def _toward_zero(exact: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Float64 in another's dtype, rounded toward zero."""
    if own.dtype.itemsize == 1 or not own.is_floating_point():
        return own
    rounded = exact.to(own.dtype)
    beyond = rounded.double().abs() > exact.double().abs()
    return torch.where(beyond, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


def _coarse(value: Any, bits: int) -> Any:
    """Float32 with fewer bits of fraction, rounded to nearest."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or not value.numel():
        return value
    dropped = 23 - bits
    whole = value.contiguous().view(torch.int32)
    return ((whole + (1 << (dropped - 1))) >> dropped << dropped).view(torch.float32)


if __name__ == "__main__":
    main()
