"""Try variants of residual + RMSNorm against the acceptance, again and again with fresh inputs.

    python -m tests.kernels.faults.trial [--repeats 3] [VARIANT...]

Prints JSON: for each variant the kinds of faults that it was rejected for, or `accepted`, with how often each, and one
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from day0.home import PROJECT

HERE = Path(__file__).parent
VARIANTS: dict[str, Any] = yaml.safe_load((HERE / "variants.yaml").read_text())

CASES = """CASES = [
    {"rows": 1, "hidden": 1},
    {"rows": 3, "hidden": 7},
    {"rows": 5, "hidden": 33},
    {"rows": 17, "hidden": 250},
    {"rows": 0, "hidden": 64},
    {"rows": 128, "hidden": 512},
    {"rows": 8, "hidden": 64, "bench": True},
]
"""


def make_folder(place: Path) -> Path:
    """The kernel's folder with its own definition, fewer cases, and the variants as its source."""
    original, folder = PROJECT / "kernels" / "fused_add_rms_norm", place / "fused_add_rms_norm"
    (folder / "cpu").mkdir(parents=True)
    definition = yaml.safe_load((original / "kernel.yaml").read_text())
    definition["dtypes"] = ["float32", "bfloat16"]
    del definition["tolerance"]["float16"]
    definition["backends"] = {"cpu": {"sources": ["cpu/kernel.cpp"], "flags": ["-O2"]}}
    (folder / "kernel.yaml").write_text(yaml.safe_dump(definition))
    (folder / "reference.py").write_text((original / "reference.py").read_text())
    made = (original / "inputs.py").read_text()
    (folder / "inputs.py").write_text(made[: made.index("CASES")] + CASES + made[made.index("\n\ndef make") :])
    (folder / "cpu" / "kernel.cpp").write_text((HERE / "kernel.cpp").read_text())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    names = args.variants or [*VARIANTS["faults"], *VARIANTS["honest"]]
    with tempfile.TemporaryDirectory() as place:
        json.dump(trial(make_folder(Path(place)), names, args.repeats), sys.stdout, indent=2)
    print()


def trial(folder: Path, names: list[str], repeats: int) -> dict[str, Any]:
    """Every variant `repeats` times."""
    import torch

    from tasks.kernels import load
    from tasks.kernels.acceptance.examine import Candidate, Examination
    from tasks.kernels.acceptance.faults import Fault
    from tasks.kernels.build import build
    from tasks.kernels.definition import KernelDefinition

    definition = KernelDefinition(folder)
    load.load(definition, "cpu", build(definition, "cpu").path)
    found = {}
    for name in names:
        ended: Counter[str] = Counter()
        reasons = {}
        for number in range(repeats):
            os.environ["VARIANT"] = ""
            row = torch.ones(1, 1)
            load.operator(definition)(row, row, row[0], 1e-6)  # so that nothing is left of the repetition before
            os.environ["VARIANT"] = name
            try:
                Examination(definition, Candidate(load.operator(definition)), seed=1000 * number + 1).run()
                ended["accepted"] += 1
            except Fault as fault:
                ended[fault.kind] += 1
                reasons[fault.kind] = str(fault)
        found[name] = {"ended": dict(ended), "reasons": reasons}
        print(f"{name}: {dict(ended)}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    main()
