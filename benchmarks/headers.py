"""Opening a checkpoint of half a million tensors against json.loads of the same files, in one interleaved run.

    python -m benchmarks.headers [--name kimi_k3] [--runs 3]

The checkpoint is a sparse one with the published names, shapes and dtypes (tests/models/published). Opening it reads
the index and every header, checks them and holds them against each other; json.loads of the same texts only parses.
Each measurement is a process of its own. Prints JSON: seconds, the ratio of the medians, peak memory.

Limits: 5 s and 350 MiB for Kimi-K3's 497,220 tensors, so that planning it in 15 s and 1 GiB is possible; against
json.loads at most 3 times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent

OPEN = """
from pathlib import Path
from day0.checkpoint import open_checkpoint
def work(root): return len(open_checkpoint(Path(root)).tensors)
"""
LOADS = """
import json
from pathlib import Path
def work(root):
    count, keep = 0, []
    for path in sorted(Path(root).glob("*.safetensors")):
        with path.open("rb") as file:
            keep.append(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
            count += len(keep[-1]) - 1
    keep.append(json.loads((Path(root) / "model.safetensors.index.json").read_bytes()))
    return count
"""
MEASURE = """
import json, sys, time
from benchmarks.peak import peak_rss
start, cpu = time.monotonic(), time.process_time()
tensors = work(sys.argv[1])
seconds, cpu = time.monotonic() - start, time.process_time() - cpu
print(json.dumps({"tensors": tensors, "seconds": seconds, "cpu_seconds": cpu, "peak_rss_bytes": peak_rss()}))
"""
LIMITS = {"seconds": 5, "peak_rss_bytes": 350 << 20, "ratio": 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="kimi_k3")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    opened, parsed = [], []
    with tempfile.TemporaryDirectory(prefix="day0-bench-") as scratch:
        root = Path(scratch)
        # In a process of its own: a child counts its parent's peak as its own.
        subprocess.run([sys.executable, "-m", "tests.models.published", args.name, scratch], cwd=PROJECT, check=True)
        for _ in range(args.runs):
            opened.append(measured(OPEN, root))
            parsed.append(measured(LOADS, root))
    seconds = statistics.median(run["seconds"] for run in opened)
    result = {
        "tensors": opened[0]["tensors"],
        "seconds": seconds,
        "json_loads_seconds": statistics.median(run["seconds"] for run in parsed),
        "cpu_seconds": statistics.median(run["cpu_seconds"] for run in opened),
        "json_loads_cpu_seconds": statistics.median(run["cpu_seconds"] for run in parsed),
        "ratio": seconds / statistics.median(run["seconds"] for run in parsed),
        "peak_rss_bytes": max(run["peak_rss_bytes"] for run in opened),
        "json_loads_peak_rss_bytes": max(run["peak_rss_bytes"] for run in parsed),
        "limits": LIMITS,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    result["within_limits"] = all(result[key] <= limit for key, limit in LIMITS.items())
    json.dump(result, sys.stdout, indent=2)
    print()
    sys.exit(0 if result["within_limits"] else 1)


def measured(work: str, root: Path) -> dict[str, Any]:
    code = work + MEASURE
    run = subprocess.run([sys.executable, "-c", code, str(root)], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


if __name__ == "__main__":
    main()
