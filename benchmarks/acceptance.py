"""How surely the acceptance of kernels tells right from wrong: planted faults and honest differences, again and again.

    python -m benchmarks.acceptance [--repeats 100] [VARIANT...]

Every fault of tests/kernels/faults/variants.yaml must be rejected each time, for one of its kinds of fault, and every
honest variant accepted each time. Prints JSON; exit code 1 where that is not so. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from day0.home import PROJECT
from tasks.kernels.acceptance.run import ENVIRONMENT
from tests.kernels.faults.trial import VARIANTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*")
    parser.add_argument("--repeats", type=int, default=100)
    args = parser.parse_args()
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.kernels.faults.trial", "--repeats", str(args.repeats), *args.variants]
    tried = subprocess.run(command, cwd=PROJECT, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(tried.stdout)
    wrong = {name: result for name, result in found.items() if not _right(name, result, args.repeats)}
    faults = sum(name in VARIANTS["faults"] for name in found)
    summary = {
        "repeats": args.repeats,
        "faults": faults,
        "honest": len(found) - faults,
        "seconds": round(time.monotonic() - started, 1),
        "ended": {name: result["ended"] for name, result in found.items()},
        "wrong": wrong,
    }
    json.dump(summary, sys.stdout, indent=2)
    print()
    sys.exit(bool(wrong) or not found)


def _right(name: str, result: dict[str, Any], repeats: int) -> bool:
    if name not in VARIANTS["faults"]:
        return bool(result["ended"] == {"accepted": repeats})
    kinds, words = VARIANTS["faults"][name]["kinds"], VARIANTS["faults"][name]["words"]
    return set(result["ended"]) <= set(kinds) and all(words in reason for reason in result["reasons"].values())


if __name__ == "__main__":
    main()
