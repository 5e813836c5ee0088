"""The CPU kernels against the framework, eager and compiled, each ratio taken within one interleaved run.

    python -m benchmarks.kernels [NAME...] [--repeats 15] [--json]

Kernels named, or all that have a CPU backend, are accepted first (a verdict of this machine is taken again) and timed
as `day0 kernels bench` does: every case that inputs.py marks for timing, in bfloat16, with cold caches, outputs given
to the kernel and to the compiled code alike, and an allocator that keeps memory. `share` is the bytes that must move
over the time, over the bandwidth of the fastest copy in the same run: torch's, or one whose stores go past the caches
(tasks/kernels/yardsticks/streaming_copy), which does not read what it writes over. `of peak` is what must be computed
over the time, over the most that all threads multiply and add in registers just before and after the kernel's timing
(tasks/kernels/yardsticks/multiply_add), where that takes longer than what must move.

A case is kept where the kernel is 1.3 times as fast as compiled code, or at 80 % of the copy's bandwidth. Exit code 1
where one is not. All cores are used: other work on the machine slows all contestants, but not alike.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from day0.verdict import Verdict
from tasks.kernels import build, load, timing_records
from tasks.kernels.definition import KernelDefinition, label
from tasks.kernels.find import kernels_folder
from tasks.kernels.timing import bench
from tasks.kernels.timing_records import Timed
from tasks.kernels.verdicts import accepted

FASTER, SHARE = 1.3, 0.8
MULTIPLY_ADD = Path(timing_records.__file__).parent / "yardsticks" / "multiply_add"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="all figures as JSON, not the table")
    options = parser.parse_args()
    folders = sorted(path.parent for path in kernels_folder().glob("*/kernel.yaml"))
    definitions = [KernelDefinition(folder) for folder in folders if not options.names or folder.name in options.names]
    results = [result for each in definitions if "cpu" in each.backends for result in measure(each, options.repeats)]
    kept = bool(results) and all(result["kept"] for result in results)
    versions = {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    limits = {"over_compiled": FASTER, "share": SHARE}
    if options.json:
        print(json.dumps({"versions": versions, "limits": limits, "results": results}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in versions.items()))
        print(f"kept: {FASTER} times compiled, or {SHARE:.0%} of the copy's bandwidth")
        show(results)
    return 0 if kept else 1


def show(results: list[dict[str, Any]]) -> None:
    """One table; times in microseconds."""
    columns = (
        "kernel",
        "case",
        "µs",
        "eager",
        "compiled",
        "/compiled",
        "share",
        "copy GB/s",
        "of peak",
        "peak GFLOP/s",
        "kept",
    )
    table = Table(*columns, box=box.SIMPLE)
    for result in results:
        kept = "yes" if result["kept"] else "NO"
        if "error" in result:
            table.add_row(result["kernel"], f"{result['verdict']}: {result['error']}", *[""] * 8, kept)
            continue
        times = (micro(result["seconds"]), micro(result["eager"]), micro(result["compiled"]))
        ratios = (f"{result['over_compiled'] or math.nan:.2f}", f"{result['share']:.2f}")
        computed = f"{result['of_peak']:.2f}" if result["of_peak"] else ""
        rates = (f"{result['copy'] / 1e9:.1f}", computed, f"{result['peak'] / 1e9:.0f}")
        table.add_row(result["kernel"], result["case"], *times, *ratios, *rates, kept)
    Console(width=200).print(table)


def micro(seconds: float | None) -> str:
    return f"{seconds * 1e6:.0f}" if seconds is not None else "-"


def measure(definition: KernelDefinition, repeats: int) -> list[dict[str, Any]]:
    """The timed cases of one kernel, or one entry that says why there are none."""
    kernel = accepted(definition, "cpu")
    before = peak()
    kernel = bench(kernel, definition, repeats=repeats)
    if kernel.verdict is not Verdict.PASS:
        return [{"kernel": definition.name, "verdict": kernel.verdict.value, "error": kernel.error, "kept": False}]
    rates = {"copy": kernel.speedup["bandwidth"], "peak": max(before, peak())}
    timed = [Timed.model_validate(case) for case in kernel.speedup["cases"]]
    flops = {label(case): definition.flops(case, torch.bfloat16.itemsize) for case in definition.cases}
    return [
        {**judged(case), **rates, "kernel": definition.name, "of_peak": of_peak(case, flops[case.case], **rates)}
        for case in timed
    ]


def peak(repeats: int = 15) -> float:
    """The most that all threads multiply and add, operations a second (a multiplication and an addition are two)."""
    definition = KernelDefinition(MULTIPLY_ADD)
    load.load(definition, "cpu", build.build(definition, "cpu").path)
    case = {"rows": 4 * torch.get_num_threads(), "steps": 100_000}
    args = definition.make(case, torch.float32, torch.Generator(), "cpu")
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        load.operator(definition)(*args)
        times.append(time.perf_counter() - started)
    return definition.flops(case, 4) / min(times)


def of_peak(timed: Timed, flops: float, copy: float, peak: float) -> float | None:
    """None where moving the bytes takes longer than computing."""
    return round(flops / timed.kernel / peak, 3) if flops / peak > timed.bytes / copy else None


def judged(timed: Timed) -> dict[str, Any]:
    faster = timed.compiled / timed.kernel if timed.compiled else None
    return {
        **timed.to_json(),
        "seconds": timed.kernel,
        "over_eager": round(timed.eager / timed.kernel, 2),
        "over_compiled": round(faster, 2) if faster else None,
        "share": round(timed.roofline, 3),
        "kept": timed.roofline >= SHARE or (faster is not None and faster >= FASTER),
    }


if __name__ == "__main__":
    raise SystemExit(main())
