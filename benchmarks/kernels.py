"""The CPU kernels against the framework, eager and compiled, each ratio taken within one interleaved run.

    python -m benchmarks.kernels [NAME...] [--repeats 15]

Kernels named, or all that have a CPU backend, are accepted first (a verdict of this machine is taken again) and timed
as `day0 kernels bench` does: every case that inputs.py marks for timing, in bfloat16, with cold caches, outputs given
to the kernel and to the compiled code alike, and an allocator that keeps memory. `share` is the bytes that must move
over the time, over a copy's bandwidth in the same run; reading is faster than copying: a share may be above one.

A case is kept where the kernel is 1.3 times as fast as compiled code, or at 80 % of the copy's bandwidth. Prints JSON;
exit code 1 where one is not. All cores are used: other work on the machine slows all contestants, but not alike.
"""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

import torch

from day0.verdict import Verdict
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import kernels_folder
from tasks.kernels.timing import bench
from tasks.kernels.timing_records import Timed
from tasks.kernels.verdicts import accepted

FASTER, SHARE = 1.3, 0.8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    folders = sorted(path.parent for path in kernels_folder().glob("*/kernel.yaml"))
    definitions = [KernelDefinition(folder) for folder in folders if not options.names or folder.name in options.names]
    results = [result for each in definitions if "cpu" in each.backends for result in measure(each, options.repeats)]
    versions = {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    limits = {"over_compiled": FASTER, "share": SHARE}
    print(json.dumps({"versions": versions, "limits": limits, "results": results}, indent=1))
    return 0 if results and all(result["kept"] for result in results) else 1


def measure(definition: KernelDefinition, repeats: int) -> list[dict[str, Any]]:
    """The timed cases of one kernel, or one entry that says why there are none."""
    kernel = bench(accepted(definition, "cpu"), definition, repeats=repeats)
    if kernel.verdict is not Verdict.PASS:
        return [{"kernel": definition.name, "verdict": kernel.verdict.value, "error": kernel.error, "kept": False}]
    bandwidth = kernel.speedup["bandwidth"]
    timed = [Timed.model_validate(case) for case in kernel.speedup["cases"]]
    return [{"kernel": definition.name, "copy": bandwidth, **judged(case)} for case in timed]


def judged(timed: Timed) -> dict[str, Any]:
    faster = timed.compiled / timed.kernel if timed.compiled else None
    return {
        **timed.to_json(),
        "over_eager": round(timed.eager / timed.kernel, 2),
        "over_compiled": round(faster, 2) if faster else None,
        "share": round(timed.roofline, 3),
        "kept": timed.roofline >= SHARE or (faster is not None and faster >= FASTER),
    }


if __name__ == "__main__":
    raise SystemExit(main())
