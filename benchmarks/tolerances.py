"""How far honest and wrong implementations are from float64: what the tolerances of each kernel.yaml rest on.

    python -m benchmarks.tolerances [--seeds 20] [--seconds 60] [--dtype float32] [--without-cpu] [KERNEL...]

Honest are our C++ kernels with each instruction set, and what tests/kernels/variants calls so: other orders of
summation, fused or rounded intermediates, approximate functions. Wrong are those that it calls so: narrow accumulation,
truncation, steps left out. A seed is one acceptance: every case is drawn several times, and judged as acceptance does.

Prints a table, and JSON: of each kernel, dtype and implementation the seeds; the least and the most of the ratios
that `ratio` and `max_ratio` limit, over seeds; of each check (`largest`, `mean`, `lean`, `exact`) the least and the
most share of what is allowed, where more than 1 is rejected; and how many seeds were rejected. Exit code 1 where an
honest one was or a wrong one was not. Needs a C++ compiler, but with --without-cpu.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch

from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.subject import Tensors, widened
from tasks.kernels.build import build
from tasks.kernels.definition import Case, KernelDefinition
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.load import as_tuple
from tests.kernels.cpu import INSTRUCTION_SETS, called, instruction_set, quick_cases
from tests.kernels.variants.arithmetic import Compute

#: How often each case is drawn for one seed; acceptance has it in more layouts than that.
DRAWS = 3
#: What takes so many times as much as is allowed is tried no more with the seed.
PLAIN = 50


@dataclass
class Measurement(Judge):
    """Judges as acceptance does, and goes on."""

    reasons: list[str] = field(default_factory=list)
    exact: bool = True
    """Integers are right, and NaN and infinity where they must be."""

    def reject(self, kind: str, detail: str) -> None:
        self.reasons.append(f"{kind}: {detail}")

    @property
    def plain(self) -> bool:
        """No more is needed to tell."""
        return not self.exact or any(part > PLAIN for one in self.sums.values() for part in one.shares.values())


@dataclass
class Range:
    """The least and the most of something over seeds."""

    least: float = math.inf
    most: float = 0.0

    def add(self, value: float) -> None:
        self.least, self.most = min(self.least, value), max(self.most, value)


@dataclass
class Found:
    """What one implementation reached over seeds."""

    seeds: int = 0
    rejected: int = 0
    mean: Range = field(default_factory=Range)
    largest: Range = field(default_factory=Range)
    shares: dict[str, Range] = field(default_factory=dict)
    share: Range = field(default_factory=Range)
    """Of the check that allows least."""
    reason: str = ""

    def add(self, judge: Measurement) -> None:
        self.seeds += 1
        sums = judge.sums.values()
        self.mean.add(max((one.worst_mean for one in sums), default=0.0))
        self.largest.add(max((one.worst for one in sums), default=0.0))
        shares = {"exact": 0.0 if judge.exact else math.inf}
        for check in ("largest", "mean", "lean"):
            shares[check] = max((one.shares.get(check, 0.0) for one in sums), default=0.0)
        for check, share in shares.items():
            self.shares.setdefault(check, Range()).add(share)
        self.share.add(max(shares.values()))
        if judge.reasons:
            self.rejected += 1
            self.reason = self.reason or judge.reasons[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60, help="at most, for each kernel and dtype")
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--without-cpu", action="store_true", help="leave our C++ kernels out")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small tensors, and others have the cores
    report, sound = {}, True
    for name in args.kernels or kernel_names():
        definition = find_kernel(name)
        if not args.without_cpu:
            load.load(definition, "cpu", build(definition, "cpu").path)
        for dtype in args.dtype or definition.file.dtypes:
            honest, wrong = implementations(definition, dtype)
            if not args.without_cpu:
                honest |= {f"ours, {isa}": partial(_ours, definition, isa) for isa in INSTRUCTION_SETS}
            found = measure(definition, dtype, honest | wrong, args.seeds, args.seconds)
            sound &= not any(found[key].rejected for key in honest)
            sound &= bool(wrong) and all(found[key].rejected == found[key].seeds for key in wrong)
            _show(definition, dtype, {key: found[key] for key in honest}, {key: found[key] for key in wrong})
            report[f"{name}, {dtype}"] = {
                "allowed": definition.file.tolerance[dtype].to_json(),
                "honest": {key: _plain(found[key]) for key in honest},
                "wrong": {key: _plain(found[key]) for key in wrong},
            }
    json.dump(report, sys.stdout, indent=2)
    print()
    sys.exit(not (sound and report))


def implementations(definition: KernelDefinition, dtype: str) -> tuple[dict[str, Compute], dict[str, Compute]]:
    """Honest and wrong ones in a dtype, by name."""
    variants = import_module(f"tests.kernels.variants.{definition.name}").VARIANTS
    honest, wrong = (
        {name: compute for name, (compute, dtypes) in group.items() if dtype in dtypes}
        for group in (variants.honest, variants.wrong)
    )
    return honest, {f"wrong: {name}": compute for name, compute in wrong.items()}


def measure(
    definition: KernelDefinition,
    dtype: str,
    tried: dict[str, Compute],
    seeds: int,
    seconds: float,
    draws: int = DRAWS,
    most: float = math.inf,
) -> dict[str, Found]:
    """Implementations in one dtype, all with the same inputs, with as many seeds as the time allows, at least one.

    Args:
        draws: how often each case is drawn for one seed.
        most: bytes that a case may move in float32.
    """
    cases = [case for case in quick_cases(definition) if definition.bytes(case, 4) <= most]
    found = {name: Found() for name in tried}
    ended = time.monotonic() + seconds
    for seed in range(seeds):
        judges = {name: Measurement(dtype, definition.file.tolerance[dtype]) for name in tried}
        generator = torch.Generator().manual_seed(seed)
        for framework, truth in (
            _compared(definition, args)[1:] for args in _made(definition, cases, dtype, generator)
        ):
            for judge in judges.values():
                judge.calibrate(framework, truth)
        for draw in range(draws):
            for number, args in enumerate(_made(definition, cases, dtype, generator)):
                wide, framework, truth = _compared(definition, args)
                for name, judge in judges.items():
                    if judge.plain:
                        continue
                    outputs = as_tuple(tried[name](*args))
                    try:
                        judge.compare(_form(definition, wide, outputs), framework, truth, f"case {number}, {draw}")
                    except Fault as fault:  # where a number is or must be none, and integers that differ
                        judge.exact = False
                        judge.reject(fault.kind, str(fault))
        for name, judge in judges.items():
            judge.finish()
            found[name].add(judge)
        if time.monotonic() > ended:
            break
    return found


def _made(
    definition: KernelDefinition, cases: list[Case], dtype: str, generator: torch.Generator
) -> Iterator[tuple[Any, ...]]:
    for case in cases:
        yield definition.make(case, getattr(torch, dtype), generator, "cpu")


def _compared(definition: KernelDefinition, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Tensors, Tensors]:
    """The arguments in float64, and the framework's results and float64's, as they are compared."""
    wide = tuple(map(widened, args))
    ours, truth = as_tuple(definition.reference(*args)), as_tuple(definition.reference(*wide))
    exact = _form(definition, wide, truth)
    return wide, _form(definition, wide, ours), tuple(t.double() if t.is_floating_point() else t for t in exact)


def _form(definition: KernelDefinition, wide: tuple[Any, ...], outputs: Tensors) -> Tensors:
    return as_tuple(definition.comparable(wide, outputs)) if definition.comparable else outputs


def _ours(definition: KernelDefinition, isa: str, *args: Any) -> Tensors:
    with instruction_set(isa):
        return called(definition, args)


def _plain(found: Found) -> dict[str, Any]:
    ranges = {"mean": vars(found.mean), "largest": vars(found.largest), "share": vars(found.share)}
    shares = {check: vars(share) for check, share in found.shares.items()}
    return {"seeds": found.seeds, "rejected": found.rejected, **ranges, "shares": shares, "reason": found.reason}


def _show(definition: KernelDefinition, dtype: str, honest: dict[str, Found], wrong: dict[str, Found]) -> None:
    """The most of honest ones and the least of wrong ones."""
    tolerance = definition.file.tolerance[dtype]
    print(
        f"\n{definition.name} {dtype}: ratio {tolerance.ratio:g}, largest {tolerance.most:g}, atol {tolerance.atol:g}",
        file=sys.stderr,
    )
    print(
        "| | mean | largest | share of what is allowed | by check | rejected |\n|---|---|---|---|---|---|",
        file=sys.stderr,
    )
    for group, pick in ((honest, "most"), (wrong, "least")):
        for name, one in group.items():
            shares = ", ".join(f"{check} {getattr(share, pick):.3g}" for check, share in one.shares.items())
            mean, largest, share = (getattr(value, pick) for value in (one.mean, one.largest, one.share))
            print(
                f"| {name} | {mean:.3g} | {largest:.3g} | {share:.3g} | {shares} | {one.rejected} of {one.seeds} |",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main()
