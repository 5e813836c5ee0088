"""Every published checkpoint whose config is known, whole, through the commands: `verify`, and `reshard --dry-run`.

    python -m benchmarks.published [NAME ...] [--folder DIR] [--skip NAME ...]

Each is made as a sparse checkpoint with its published names, shapes and dtypes (tests/models/published), verified, and
planned in every layout that its family has, tensor parallel, and tensor, pipeline and expert parallel together. A
line of JSON each: what was asked, tensors, seconds, and the refusal where there is one. Exit code 1 where verify finds
a fault, or where a plan is refused for another reason than that a size does not divide.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from day0.architecture.binding import bind
from day0.architecture.family import find_family
from day0.checkpoint import open_checkpoint
from tests.architecture.test_families import SIZES
from tests.architecture.test_families_moe import SIZES as MOE_SIZES
from tests.models.published import NAMES, make_published, published_config, table

#: Layout → (tp, pp, ep).
WORLDS = {
    "hf": [(8, 1, 1), (4, 2, 8)],
    "vllm": [(8, 1, 1), (4, 2, 4)],
    "deepseek": [(8, 1, 8)],
}
DIVIDES = re.compile(r"\d+ is not divisible by|is no multiple of its quantisation block|has no experts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--skip", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--folder", type=Path, help="where to make them; by default the temporary folder")
    args = parser.parse_args()
    sizes = SIZES | MOE_SIZES
    known = [name for name in NAMES if published_config(name) or name in sizes]
    failed = False
    for name in sorted(args.names or set(known) - set(args.skip), key=lambda name: table(name)["stated"]["tensors"]):
        root = Path(tempfile.mkdtemp(prefix="day0-published-", dir=args.folder))
        try:
            make_published(name, root / "source")
            config = published_config(name) or sizes[name]
            (root / "source/config.json").write_text(json.dumps(config))
            checkpoint = open_checkpoint(root / "source")
            layouts = {"hf", *bind(find_family(config), config, checkpoint.tensors).layouts} & WORLDS.keys()
            del checkpoint
            failed |= verify(name, root)
            for layout in sorted(layouts):
                for tp, pp, ep in WORLDS[layout]:
                    failed |= plan(name, root, layout, tp, pp, ep)
        finally:
            shutil.rmtree(root)
    sys.exit(1 if failed else 0)


def verify(name: str, root: Path) -> bool:
    """Whether there is a fault. Contents are not checked, as the files have none; the structure is."""
    answer, seconds = day0("verify", str(root / "source"))
    faults = answer.get("faults")
    note(name, "verify", seconds, tensors=answer.get("tensors"), faults=faults, error=answer.get("error"))
    return faults != []


def plan(name: str, root: Path, layout: str, tp: int, pp: int, ep: int) -> bool:
    """Whether it was refused for no good reason."""
    sizes = ["--tp", str(tp), "--pp", str(pp), "--ep", str(ep)]
    answer, seconds = day0(
        "reshard", str(root / "source"), str(root / "target"), "--layout", layout, *sizes, "--dry-run"
    )
    error = answer.get("error")
    kept = {key: answer.get(key) for key in ("bytes_read", "bytes_written")}
    kept |= {"files": len(answer.get("files", [])), "dropped": len(answer.get("dropped", []))}
    note(name, f"{layout} tp{tp} pp{pp} ep{ep}", seconds, **({"refused": error} if error else kept))
    return error is not None and not DIVIDES.search(str(error))


def day0(*arguments: str) -> tuple[dict[str, Any], float]:
    start = time.monotonic()
    run = subprocess.run([sys.executable, "-m", "flows.cli", *arguments, "--json"], capture_output=True, text=True)
    seconds = time.monotonic() - start
    try:
        return json.loads(run.stdout), seconds
    except ValueError:
        return {"error": f"exit code {run.returncode}: {run.stderr[-500:]}"}, seconds


def note(name: str, what: str, seconds: float, **more: Any) -> None:
    line = {"name": name, "what": what, "seconds": round(seconds, 2), **more, "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
