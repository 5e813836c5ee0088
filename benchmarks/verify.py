"""`day0 verify` against `openssl dgst -sha256` and against the hub client's own verification, in one interleaved run.

    python -m benchmarks.verify [--gigabytes 3.1] [--shards 8] [--runs 3] [--folder DIR]

Makes a checkpoint (Qwen3-30B-A3B's names, with as many of its layers as fit) of random bytes, by default on a memory
file system, and then takes turns:

- openssl: one process a core, the files shared out among them by size as evenly as they can be;
- the hub client: verify_maps, what `hf cache verify` does once the hub has told it the digests (no network here);
- day0: structure, scale pairs, safety and digests of the same files, each read and hashed anew.

Each of the latter two is a process of its own, measured after its imports. Prints JSON: seconds, medians, ratios.

Limits: at most 1.05 of openssl's time; the hub client takes at least 1.7 times as long (two cores).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.models.published import published_tensors
from tests.models.safetensors_file import nbytes, random_bytes, write_file

PROJECT = Path(__file__).parent.parent

LIMITS = {"of_openssl": 1.05, "hub_client_of_day0": 1.7}

DAY0 = """
import sys, time
from pathlib import Path
from benchmarks.peak import peak_rss
from tasks.download.manifest import read_manifest
from tasks.download.verify import verify_folder
root, sums = Path(sys.argv[1]), Path(sys.argv[2])
start, cpu = time.monotonic(), time.process_time()
report = verify_folder(root, read_manifest(sums), rehash=True)
seconds, cpu = time.monotonic() - start, time.process_time() - cpu
print(seconds, cpu, peak_rss())
sys.exit(report.verdict != "pass" or report.checked_files == 0)
"""
HUB = """
import json, sys, time
from pathlib import Path
from benchmarks.peak import peak_rss
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._verification import collect_local_files, verify_maps
root, sums = Path(sys.argv[1]), Path(sys.argv[2])
digests = dict(reversed(line.split("  ", 1)) for line in sums.read_text().splitlines())
start, cpu = time.monotonic(), time.process_time()
remote = {
    name: RepoFile(path=name, size=0, oid="0", lfs={"size": 0, "oid": digest, "pointerSize": 0})
    for name, digest in digests.items()
}
result = verify_maps(
    remote_by_path=remote, local_by_path=collect_local_files(root), revision="main", verified_path=root
)
seconds, cpu = time.monotonic() - start, time.process_time() - cpu
print(seconds, cpu, peak_rss())
sys.exit(bool(result.mismatches or result.missing_paths) or result.checked_count != len(remote))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3.1)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="day0-bench-") as scratch:
        root, sums = Path(scratch) / "model", Path(scratch) / "SHA256"
        os.environ["DAY0_HOME"] = str(Path(scratch) / "home")
        make_checkpoint(root, args.gigabytes * 1e9, args.shards)
        subprocess.run(f"sha256sum * > {sums}", cwd=root, check=True, shell=True)  # noqa: S602
        total = sum(path.stat().st_size for path in root.iterdir())
        runs: dict[str, list[Run]] = {"openssl": [], "day0": [], "hub_client": []}
        for _ in range(args.runs):
            runs["openssl"].append(timed_openssl(root))
            runs["day0"].append(measured(DAY0, root, sums))
            runs["hub_client"].append(measured(HUB, root, sums))
    median = {name: statistics.median(run.seconds for run in done) for name, done in runs.items()}
    best = {name: min(run.seconds for run in done) for name, done in runs.items()}
    result = {
        "bytes": total,
        "seconds": {name: [run.seconds for run in done] for name, done in runs.items()},
        "cpu_seconds": {name: statistics.median(run.cpu for run in done) for name, done in runs.items()},
        "of_openssl": median["day0"] / median["openssl"],
        "hub_client_of_day0": median["hub_client"] / median["day0"],
        "in_the_quietest_runs": {
            "of_openssl": best["day0"] / best["openssl"],
            "hub_client_of_day0": best["hub_client"] / best["day0"],
        },
        "day0_peak_rss_bytes": max(run.peak for run in runs["day0"]),
        "limits": LIMITS,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    result["within_limits"] = (
        result["of_openssl"] <= LIMITS["of_openssl"] and result["hub_client_of_day0"] >= LIMITS["hub_client_of_day0"]
    )
    json.dump(result, sys.stdout, indent=2)
    print()
    sys.exit(0 if result["within_limits"] else 1)


class Run(NamedTuple):
    """Seconds by the clock and of all cores, and the peak of memory in bytes."""

    seconds: float
    cpu: float
    peak: int


def timed_openssl(root: Path) -> Run:
    """One `openssl dgst` a core over all files, shared out among them the largest first."""
    shares: list[list[Path]] = [[] for _ in range(os.cpu_count() or 1)]
    loads = [0] * len(shares)
    for path in sorted(root.iterdir(), key=lambda path: -path.stat().st_size):
        least = loads.index(min(loads))
        shares[least].append(path)
        loads[least] += path.stat().st_size
    before = os.times()
    running = [
        subprocess.Popen(["openssl", "dgst", "-sha256", *map(str, share)], stdout=subprocess.DEVNULL)
        for share in shares
        if share
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        sys.exit("openssl failed")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(after.elapsed - before.elapsed, cpu, 0)


def measured(code: str, root: Path, sums: Path) -> Run:
    """A verification in a process of its own, as that has measured itself."""
    command = [sys.executable, "-c", code, str(root), str(sums)]
    run = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT)
    seconds, cpu, peak = run.stdout.split()
    return Run(float(seconds), float(cpu), int(peak))


def make_checkpoint(root: Path, size: float, shards: int) -> None:
    """Random bytes under the names of Qwen3-30B-A3B, as many layers as fit into `size`, over about `shards` files."""
    root.mkdir()
    tensors, total = [], 0
    for name, dtype, shape in published_tensors("qwen3_30b_a3b_instruct_2507"):
        if re.match(r"model\.(layers|norm)", name) and total + nbytes(dtype, shape) <= size:
            tensors.append((name, dtype, shape))
            total += nbytes(dtype, shape)
    weight_map: dict[str, str] = {}
    number = 0
    while tensors:
        number += 1
        file, held, filled = f"model-{number:05d}-of-{shards:05d}.safetensors", {}, 0
        while tensors and (filled < total / shards or number == shards):
            name, dtype, shape = tensors.pop(0)
            held[name] = dtype, shape
            filled += nbytes(dtype, shape)
        weight_map |= dict.fromkeys(held, file)
        write_file(root / file, held, random_bytes(filled))
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (root / "config.json").write_text('{"model_type": "qwen3_moe"}')


if __name__ == "__main__":
    main()
