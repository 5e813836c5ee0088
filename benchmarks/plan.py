"""Planning a checkpoint of half a million tensors from its headers, and the whole dry run of it.

    python benchmarks/plan.py [--name kimi_k3] [--layout hf] [--ep 64] [--tp 1] [--pp 1] [--runs 3]

The checkpoint is a sparse one with the published names, shapes and dtypes (tests/models/published). `plan` opens it and
plans; `command` is `day0 reshard --dry-run`, which also says how large every file would be, the record of half a
million tensors among them. Each measurement is a process of its own, from its start to its end. Prints JSON: the
medians of wall and CPU time, the peak of memory, and whether the limits are kept. On a machine with other work, read
the CPU time: waiting for a core is not in it.

Limits, for `plan` of Kimi-K3's 497,220 tensors (1.45 TB) with EP=64: 15 s and 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
LIMITS = {"seconds": 15, "peak_rss_bytes": 1 << 30}

PLAN = """
import sys
from pathlib import Path
from day0.architecture.family import find_family
from day0.checkpoint import open_checkpoint
from tasks.reshard.planner import plan_writes
checkpoint = open_checkpoint(Path(sys.argv[1]))
tp, pp, ep = map(int, sys.argv[3:])
plan = plan_writes(checkpoint, find_family(checkpoint.config), sys.argv[2], tp, pp, ep)
assert len(checkpoint.tensors) == sum(len(s.inputs) for listed in plan.streams.values() for s in listed)
print(sum(len(file.tensors) for file in plan.files))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="kimi_k3")
    parser.add_argument("--layout", default="hf")
    parser.add_argument("--tp", default="1")
    parser.add_argument("--pp", default="1")
    parser.add_argument("--ep", default="64")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    sizes = [args.tp, args.pp, args.ep]
    planned, commanded = [], []
    with tempfile.TemporaryDirectory(prefix="day0-bench-") as scratch:
        source, target = f"{scratch}/source", f"{scratch}/target"
        make = [sys.executable, "-m", "tests.models.published", args.name, source]
        subprocess.run(make, cwd=PROJECT, check=True)
        options = [word for pair in zip(("--tp", "--pp", "--ep"), sizes, strict=True) for word in pair]
        command = ["reshard", source, target, "--layout", args.layout, *options, "--dry-run", "--json"]
        for _ in range(args.runs):
            planned.append(measured("-c", PLAN, source, args.layout, *sizes))
            commanded.append(measured("-m", "flows.cli", *command))
    result = {
        "name": args.name,
        "layout": args.layout,
        "tp_pp_ep": [int(size) for size in sizes],
        "plan": summary(planned),
        "command": summary(commanded),
        "limits": LIMITS,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    result["within_limits"] = all(summary(planned)[key] <= limit for key, limit in LIMITS.items())
    json.dump(result, sys.stdout, indent=2)
    print()
    sys.exit(0 if result["within_limits"] else 1)


def measured(*arguments: str) -> dict[str, float]:
    """Wall and CPU seconds, and the peak of memory, of a process with these arguments."""
    start = time.monotonic()
    with subprocess.Popen([sys.executable, *arguments], cwd=PROJECT, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    if process.returncode:
        raise SystemExit(f"it ended with {process.returncode}")
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
    }


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(run["seconds"] for run in runs),
        "cpu_seconds": statistics.median(run["cpu_seconds"] for run in runs),
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in runs),
        "runs": [round(run["seconds"], 2) for run in runs],
    }


if __name__ == "__main__":
    main()
