"""Time and memory of a profile of every published config, each in a process of its own.

    python -m benchmarks.profile [--seconds 1.0] [--mebibytes 150] [--runs 3] [--checkpoints]

Seconds are those of reading a config and making the whole profile, without the interpreter's start and imports, the
best of the runs; `command` is the whole command's with them. The peak of memory is the process's. Neither torch nor
transformers is imported, which each process checks. --checkpoints: also the published tensor tables, whole, as sparse
files in --folder; they have no limit. Prints JSON; exit code 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.architecture.published_configs import CONFIGS, write_model
from tests.models.published import make_published
from tests.models.published_models import TABLES, config_of

ONE = """
import sys, time
from pathlib import Path
from benchmarks.peak import peak_rss
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings
start = time.perf_counter()
profile = describe_model(Path(sys.argv[1]), ProfileSettings())
seconds = time.perf_counter() - start
heavy = {"torch", "transformers", "numba", "prefect", "matplotlib"} & sys.modules.keys()
assert not heavy, heavy
print(seconds, peak_rss() / (1 << 20), profile.parameters.total, profile.verdict)
"""


def measure(path: Path, runs: int) -> dict[str, Any]:
    """The best of some runs, each in a process of its own."""
    found: list[dict[str, Any]] = []
    for _ in range(runs):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", ONE, str(path)], capture_output=True, text=True, check=True
        ).stdout.split()
        whole = time.perf_counter() - start
        found.append(
            {
                "seconds": round(float(done[0]), 3),
                "command": round(whole, 3),
                "mebibytes": round(float(done[1]), 1),
                "parameters": int(done[2]),
                "verdict": done[3],
            }
        )
    return min(found, key=lambda run: run["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--mebibytes", type=float, default=150.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="day0-profile-", dir=args.folder))
    try:
        configs = {path.stem: measure(write_model(path, root / path.stem), args.runs) for path in CONFIGS}
        tables = {}
        for name in TABLES if args.checkpoints else ():
            model = make_published(name, root / name)
            (model / "config.json").write_text(json.dumps(config_of(name)))
            tables[name] = measure(model, 1)
            shutil.rmtree(model)
    finally:
        shutil.rmtree(root)
    over = [name for name, run in configs.items() if run["seconds"] > args.seconds or run["mebibytes"] > args.mebibytes]
    worst = {key: max(run[key] for run in configs.values()) for key in ("seconds", "command", "mebibytes")}
    limits = {"seconds": args.seconds, "mebibytes": args.mebibytes}
    print(json.dumps({"limits": limits, "worst": worst, "over": over, "configs": configs, "tables": tables}, indent=2))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
