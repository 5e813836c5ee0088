"""The reshard against what it can be held to, each ratio taken within one interleaved run.

    python -m benchmarks.reshard [copy] [hashed] [torch] [cold] [reflink] [memory] [--gigabytes 3.1] [--runs 3]
        [--layout hf] [--folder /dev/shm] [--disk DIR]

copy     to TP=4 with hashes off, against copy_file_range of the same bytes with as many threads; memory file system
hashed   the same with SHA-256 of all that is read and written, against (that copy's CPU time + the SHA-256 of as many
         bytes) / cores
torch    with hashes off, against safe_open + chunk + save_file with torch, one shard after another, torch's own threads
         on all cores; `pool` is the ratio to the same with as many shards at once as there are cores
cold     with hashes, source not in memory, against cp of the same bytes; on --disk, everything synced; `unhashed` is
         the ratio with hashes off
reflink  by PP=4 and by EP=4 with hashes off on XFS in a loop file on --disk, against cp --reflink=never (needs root)
memory   the peak of memory, planning included, for as many gigabytes and for ten times as many (holes, on --disk)

Measures named, or all. Prints JSON with the limits; exit code 1 where one is not kept. What is timed is opening the
checkpoint, planning, and all that is written, as the command does it. On a machine with other work, read the ratios of
CPU time: waiting for a core is not in them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.baselines import CORES, copy, cp, forget, sha256, torch_split
from benchmarks.checkpoints import make_checkpoint
from day0.architecture.family import find_family
from day0.checkpoint import Checkpoint, open_checkpoint
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards

LIMITS = {"copy": 1.25, "hashed": 1.20, "torch": 0.5, "cold": 1.10, "reflink": 0.10, "memory": 200 << 20}
WARM = 4  # rounds in memory that are not counted: all ways get faster until memory was given out a few times
SETTLE = 2.0  # seconds in which a file system gives back the space of what was removed

PEAK = """
import sys
from pathlib import Path
from benchmarks.peak import peak_rss
from benchmarks.reshard import reshard
from day0.checkpoint import open_checkpoint
reshard(open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2]), tp=4)
assert "torch" not in sys.modules
print(peak_rss())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", help=", ".join(LIMITS))
    parser.add_argument("--gigabytes", type=float, default=3.1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--layout", choices=["hf", "vllm"], default="hf")
    parser.add_argument("--proportions", choices=["moe", "dense"], default="moe", help="of the model, in memory")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="on a memory file system")
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="on a disk")
    args = parser.parse_args()
    if unknown := set(args.measures) - set(LIMITS):
        parser.error(f"no measure {sorted(unknown)[0]!r}; there are {', '.join(LIMITS)}")
    wanted = args.measures or list(LIMITS)
    result: dict[str, Any] = {
        "cpus": CORES,
        "load_average": os.getloadavg()[0],
        "layout": args.layout,
        "proportions": args.proportions,
    }
    warm = {"copy", "hashed", "torch"}.intersection(wanted)
    if warm:
        with folder_in(args.folder) as work:
            result |= in_memory(work, warm, args)
    if "cold" in wanted:
        with folder_in(args.disk) as work:
            result["cold"] = cold(work, args.gigabytes, args.runs, args.layout)
    if "reflink" in wanted:
        with folder_in(args.disk) as work, xfs(work, args.gigabytes) as place:
            result["reflink"] = reflink(place, args.gigabytes, args.runs)
    if "memory" in wanted:
        result["memory"] = memory(args.disk, args.gigabytes)
    for name in wanted:
        result[name] |= {"limit": LIMITS[name], "within": result[name]["measured"] <= LIMITS[name]}
    json.dump(result, sys.stdout, indent=2)
    print()
    sys.exit(not all(result[name]["within"] for name in wanted))


def in_memory(work: Path, wanted: set[str], args: argparse.Namespace) -> dict[str, Any]:
    """The three measures on a memory file system, whose parts take turns, in an order that rotates."""
    layout, runs, out = args.layout, args.runs, work / "out"
    checkpoint = make_checkpoint(work / "source", args.gigabytes, proportions=args.proportions)
    ways: dict[str, tuple[Callable[[], None], Path | None]] = {
        "copy": (lambda: copy(checkpoint, out), out),
        "sha256": (lambda: sha256(2 * checkpoint.bytes), None),
        "hashed": (lambda: reshard(checkpoint, out, tp=4, layout=layout), out),
        "torch": (lambda: torch_split(checkpoint, out, 4), out),
        "pool": (lambda: torch_split(checkpoint, out, 4, pool=True), out),
        "unhashed": (lambda: reshard(checkpoint, out, hashes=False, tp=4, layout=layout), out),
    }
    needed = {"copy", "unhashed"}
    needed |= {"sha256", "hashed"} if "hashed" in wanted else set()
    needed |= {"torch", "pool"} if "torch" in wanted else set()
    order = [name for name in ways if name in needed]
    times = Times()
    for number in range(WARM + runs):
        counted = times if number >= WARM else Times()
        first = number % len(order)
        for name in [*order, *order][first : first + len(order)]:
            counted.take(name, *ways[name])
    floor = (times.cpu("copy") + times.cpu("sha256")) / CORES if "hashed" in wanted else 0.0
    found: dict[str, dict[str, Any]] = {
        "seconds": times.seconds,
        "cpu_seconds": times.cpu_seconds,
        "bytes": {"source": checkpoint.bytes},
    }
    if "copy" in wanted:
        found["copy"] = times.ratio("unhashed", "copy")
    if "hashed" in wanted:
        found["hashed"] = {
            "measured": times.median("hashed") / floor,
            "quietest": min(times.seconds["hashed"]) / floor,
            "cpu": times.cpu("hashed") / CORES / floor,
        }
    if "torch" in wanted:
        found["torch"] = times.ratio("unhashed", "torch") | {"pool": times.ratio("unhashed", "pool")}
    return found


def cold(work: Path, gigabytes: float, runs: int, layout: str) -> dict[str, Any]:
    """The measures from a disk, in an order that rotates; each finds the disk as the others do.

    A disk that was idle takes a burst quicker (a virtual one has credit, a real one a cache), so the first round is
    not counted; nor is what removing the output before it still costs, which file systems do after the call.
    """
    checkpoint, out = make_checkpoint(work / "source", gigabytes), work / "out"
    ways: dict[str, Callable[[], None]] = {
        "cp": lambda: cp(checkpoint, out),
        "reshard": lambda: reshard(checkpoint, out, tp=4, layout=layout),
        "unhashed": lambda: reshard(checkpoint, out, hashes=False, tp=4, layout=layout),
    }
    times = Times()
    for number in range(runs + 1):
        counted = times if number else Times()
        first = number % len(ways)
        for name in [*ways, *ways][first : first + len(ways)]:
            forget(checkpoint)
            time.sleep(SETTLE)
            counted.take(name, ways[name], out)
    return times.ratio("reshard", "cp") | {
        "unhashed": times.ratio("unhashed", "cp"),
        "seconds": times.seconds,
        "cpu_seconds": times.cpu_seconds,
    }


def reflink(place: Path, gigabytes: float, runs: int) -> dict[str, Any]:
    checkpoint, out = make_checkpoint(place / "source", gigabytes), place / "out"
    times, space = Times(), {}
    for _ in range(runs):
        os.sync()
        times.take("cp", lambda: cp(checkpoint, out), out)
        for name, sizes in {"pp=4": {"pp": 4}, "ep=4": {"ep": 4}}.items():
            os.sync()
            before = used(place)
            times.take(name, partial(reshard, checkpoint, out, hashes=False, shares=True, **sizes))
            os.sync()
            space[name] = (used(place) - before) / checkpoint.bytes
            shutil.rmtree(out)
    ratios = {name: times.median(name) / times.median("cp") for name in ("pp=4", "ep=4")}
    return {"measured": max(ratios.values()), "ratios": ratios, "space": space, "seconds": times.seconds}


def memory(disk: Path, gigabytes: float) -> dict[str, Any]:
    peaks = {}
    for size in (gigabytes, 10 * gigabytes):
        with folder_in(disk) as work:
            source = make_checkpoint(work / "source", size, sparse=True).root
            command = [sys.executable, "-c", PEAK, str(source), str(work / "out")]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            peaks[f"{size:g} GB"] = int(told)
    return {"measured": max(peaks.values()), "peaks": peaks}


class Times:
    """Seconds by the clock, and of all cores (this process's and its children's), of each run by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.cpu_seconds: dict[str, list[float]] = defaultdict(list)

    def take(self, name: str, work: Callable[[], None], remove: Path | None = None) -> None:
        """Run `work`; what it wrote is removed afterwards, outside the time."""
        start, cpu = time.monotonic(), _cpu()
        work()
        self.seconds[name].append(time.monotonic() - start)
        self.cpu_seconds[name].append(_cpu() - cpu)
        if remove:
            shutil.rmtree(remove)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def cpu(self, name: str) -> float:
        return statistics.median(self.cpu_seconds[name])

    def ratio(self, name: str, to: str) -> dict[str, Any]:
        """Of the medians, of the quietest runs, and of CPU time."""
        return {
            "measured": self.median(name) / self.median(to),
            "quietest": min(self.seconds[name]) / min(self.seconds[to]),
            "cpu": self.cpu(name) / self.cpu(to),
        }


def _cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def reshard(
    checkpoint: Checkpoint,
    target: Path,
    *,
    hashes: bool = True,
    layout: str = "hf",
    shares: bool = False,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
) -> None:
    """As the command does it."""
    checkpoint = open_checkpoint(checkpoint.root)
    plan = plan_writes(checkpoint, find_family(checkpoint.config), layout, tp, pp, ep, cut_to_share=shares)
    with resumable_folder(target, plan_key(plan, checkpoint)) as folder:
        write_shards(plan, checkpoint, folder.root, hashes=hashes, journal=folder.journal)


@contextmanager
def folder_in(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=place, prefix="day0-bench-") as scratch:
        yield Path(scratch)


@contextmanager
def xfs(work: Path, gigabytes: float) -> Iterator[Path]:
    """An XFS file system for the source, a copy and what metadata comes to."""
    image, place = work / "image", work / "mounted"
    image.touch()
    os.truncate(image, int(gigabytes * 2.5e9))
    place.mkdir()
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def used(place: Path) -> int:
    status = os.statvfs(place)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


if __name__ == "__main__":
    main()
