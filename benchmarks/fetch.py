"""Fetching with verification, and with resharding, against the fetch alone, from a hub on this machine.

    python -m benchmarks.fetch [--gigabytes 1] [--shards 32] [--runs 3] [--rate BYTES_PER_SECOND]
                               [--folder DIR] [--hub-folder DIR]

Takes turns, in one run, at one release of random weights, each time with nothing of it there:

    plain    as many connections as day0 opens, each file written as it comes and put on the disk; nothing is checked
    client   the hub's own client (snapshot_download), as it is: nothing is checked but sizes
    day0     fetch: every byte hashed on the way and compared, the structure examined
    reshard  a survey, and then that fetch with a reshard to TP=2 that takes each shard as it lands

Prints JSON: every run's seconds, the medians, the ratios to plain and to client, processor time, and what was read
from files. The hub runs in a process of its own, and all share this machine's cores and its loopback: without --rate
they are what is measured, not a network. With it each connection is as slow as that, and a core is free to hash and
to split.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.checkpoints import make_checkpoint
from day0.architecture.family import find_family
from day0.checkpoint import open_checkpoint
from day0.landing import Landing
from day0.verdict import Verdict
from tasks.download import client
from tasks.download.fetch import fetch, survey
from tasks.download.parallel import CONNECTIONS
from tasks.download.source import HubRelease
from tasks.reshard.planner import plan_writes
from tasks.reshard.shards import write_shards

NAME = "bench/model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--shards", type=int, default=32, help="as many as arrive at once leave nothing to overlap")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rate", type=float, help="bytes per second of each connection; by default no limit")
    parser.add_argument("--folder", type=Path, help="where to fetch to; by default the system's temporary folder")
    parser.add_argument("--hub-folder", type=Path, help="where the hub's files lie; by default the same")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=args.hub_folder or args.folder, prefix="day0-hub-") as hub,
        tempfile.TemporaryDirectory(dir=args.folder, prefix="day0-bench-") as scratch,
    ):
        checkpoint = make_checkpoint(Path(hub) / NAME, args.gigabytes, shards=args.shards)
        with serving(Path(hub), args.rate):
            result = measure(Path(scratch), args.runs)
    result |= {
        "bytes": checkpoint.bytes,
        "rate": args.rate,
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    json.dump(result, sys.stdout, indent=2)
    print()


def measure(work: Path, runs: int) -> dict[str, object]:
    """Every way in turn, `runs` times."""
    os.environ |= {"DAY0_HOME": str(work / "home"), "HF_HOME": str(work / "hf"), "HF_HUB_DISABLE_XET": "1"}
    release = client.look_up(NAME, None)
    ways: dict[str, Callable[[], None]] = {
        "plain": lambda: by_plain_http(release, work / "plain"),
        "client": lambda: by_client(release, work / "client"),
        "day0": by_day0,
        "reshard": lambda: by_day0_with_reshard(work / "ranks"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    read: dict[str, int] = {}
    for _ in range(runs):
        for name, way in ways.items():
            before = bytes_read()
            worked, started = cpu_seconds(), time.monotonic()
            way()
            cpu[name].append(cpu_seconds() - worked)
            seconds[name].append(time.monotonic() - started)
            read[name] = bytes_read() - before
            for path in work.iterdir():
                shutil.rmtree(path)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "seconds": seconds,
        "medians": medians,
        **{
            f"{name}_to_{base}": medians[name] / medians[base]
            for name in ("day0", "reshard")
            for base in ("plain", "client")
        },
        "cpu_seconds": {name: statistics.median(each) for name, each in cpu.items()},
        "read_bytes": read,
    }


def by_day0_with_reshard(out: Path) -> None:
    surveyed = survey(NAME)
    landing = Landing.of(surveyed)
    checkpoint = open_checkpoint(Path(surveyed.location))
    with landing.follow(), ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(by_day0)
        out.mkdir()
        plan = plan_writes(checkpoint, find_family(checkpoint.config), "hf", 2)
        if write_shards(plan, checkpoint, out, landing.digests, landing=landing).verdict is not Verdict.PASS:
            raise SystemExit("the release was not split as it should be")
        fetched.result()


def by_day0() -> None:
    if fetch(NAME).verdict is not Verdict.PASS:
        raise SystemExit("the release was not fetched as it is")


def by_client(release: HubRelease, folder: Path) -> None:
    code = "import sys, huggingface_hub; huggingface_hub.snapshot_download(sys.argv[1], local_dir=sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, release.repository, folder], check=True, stderr=subprocess.DEVNULL)


def by_plain_http(release: HubRelease, folder: Path) -> None:
    client.look_up(NAME, None)  # as the others do
    folder.mkdir()

    def one(name: str) -> None:
        with httpx.stream("GET", client.address(release, name).url) as response, (folder / name).open("wb") as file:
            for piece in response.iter_raw():
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(one, release.files))


def cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended; not of the hub."""
    return sum(os.times()[:4])


def bytes_read() -> int:
    """What this process has read from files so far; the kernel does not count what came over sockets."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


@contextmanager
def serving(root: Path, rate: float | None) -> Iterator[None]:
    """A hub over `root` in a process of its own."""
    command = [sys.executable, "-m", "tests.hub", str(root), *(["--rate", str(rate)] if rate else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        os.environ["HF_ENDPOINT"] = process.stdout.readline().strip().partition("=")[2]
        yield
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
