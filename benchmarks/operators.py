"""Time and memory of the operator inventory of published models, and how far its work is from the closed formulas.

    python -m benchmarks.operators [--seconds 20] [--mebibytes 2048] [--off 0.01] [--graph] [MODEL ...]

Each model in a process of its own: interpreter, imports of torch and transformers, trace of prefill and decode at 512
tokens with generate()'s own operators, registrations. `trace` is the part after the imports. The peak of memory is the
process's. `off` is the larger relative difference of a phase's FLOPs, corrections added, to those of the profile.
Prints JSON; exit code 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[1] / "tests/data/configs"

MODELS = (
    "deepseek-ai__DeepSeek-V3",
    "Qwen__Qwen3-235B-A22B",
    "meta-llama__Meta-Llama-3.1-405B",
    "openai__gpt-oss-120b",
    "Qwen__Qwen3-VL-235B-A22B-Instruct",
)

ONE = """
import json, sys, time
from pathlib import Path
from benchmarks.peak import peak_rss
from day0.architecture.parallel import Sizes
from day0.architecture.stored import stored_from_config
from day0.architecture.structure import structure_of
from day0.architecture.work import Step, WorkModel
from tasks.operators.capture import capture
from tasks.operators.corrections import corrections
from tasks.operators.formulas import BYTES_OF
from tasks.operators.records import CaptureRequest
raw, graph = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2] == "graph"
start = time.perf_counter()
found = capture(CaptureRequest(config=raw, prompt=512, context=512, dispatch_key="CPU", graph=graph))
seconds = time.perf_counter() - start
assert not found.unsupported, found.unsupported
peak = peak_rss()
structure = structure_of(raw, sys.argv[1])
work = WorkModel(structure, stored_from_config(structure, None), BYTES_OF)
passes = {"prefill": (512, 0), "decode": (1, 512)}
corrected = corrections(structure, found, passes)
off = 0.0
for phase, (new, past) in passes.items():
    flops = sum(o.flops or 0 for o in found.phases[phase]) + sum(c.flops for c in corrected[phase])
    off = max(off, abs(flops / work.rank_work(Step(1, new, past), Sizes(1, 1)).flops - 1))
print(json.dumps({
    "trace": round(seconds, 2),
    "mebibytes": round(peak / (1 << 20), 1),
    "off": round(off, 5),
    "operators": len({o.name for phase in found.phases.values() for o in phase}),
    "calls": {phase: sum(o.calls for o in operators) for phase, operators in found.phases.items()},
    "layers": f"{found.traced_layers} of {found.layers}",
    "corrected": sorted({c.what for phase in corrected.values() for c in phase}),
    "patterns": {name: count for name, count in found.graph.patterns.items() if count} if found.graph else None,
}))
"""


def measure(name: str, graph: bool) -> dict[str, Any]:
    """One model in a process of its own."""
    start = time.perf_counter()
    command = [sys.executable, "-c", ONE, str(CONFIGS / f"{name}.json"), "graph" if graph else ""]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return {"seconds": round(time.perf_counter() - start, 2), **json.loads(answer)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="files in tests/data/configs")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--mebibytes", type=float, default=2048.0)
    parser.add_argument("--off", type=float, default=0.01)
    parser.add_argument("--graph", action="store_true", help="with torch.export's graph")
    args = parser.parse_args()
    limits = {"seconds": args.seconds, "mebibytes": args.mebibytes, "off": args.off}
    found = {name: measure(name, args.graph) for name in args.models}
    over = [name for name, run in found.items() if any(run[key] > limit for key, limit in limits.items())]
    print(json.dumps({"limits": limits, "over": over, "models": found}, indent=2))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
