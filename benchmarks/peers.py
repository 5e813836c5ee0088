"""The published configs, as day0 profiles and plans them, beside what hf-mem and GPUStack's formula say.

    python -m benchmarks.peers [--only PATTERN] [--target h200] [--concurrency 32] [--json FILE]

For each config of tests/data/configs: parameters, KV cache of a token, KV cache of all requests at the model's full
length, and the fewest devices for that. KV caches are of bfloat16 everywhere. Prints a table and a summary in Markdown.

- day0: what `day0 profile --json` and `day0 plan --json` answer, each a process of its own.
- hf-mem 0.5.6 (PyPI), in an environment of its own that is made when it is not there: its function
  `compute_safetensors_kv_cache_size`. It counts no devices; here its total (weights and KV) is divided by the memory of
  one, rounded up.
- GPUStack (gpustack/gpustack, policies/utils.py `estimate_model_vram`, policies/candidate_selectors/
  vllm_resource_fit_selector.py, base_candidate_selector.py): VRAM = weights * 1.2 + 2 GiB, nothing for the cache; 90 %
  of a device counts; on one node as few devices as divide the attention heads and the vocabulary, else whole nodes.

Both are given the size of the weights that day0 computes, as they read it from the files.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0.target import load_target
from tests.architecture.published_configs import CONFIGS, read, write_model

PROJECT = Path(__file__).parent.parent
HOME = Path(os.environ.get("DAY0_TEST_HOME") or Path.home() / ".cache" / "day0-tests")
HF_MEM = "hf-mem==0.5.6"

#: Answers that are further from ours than this are counted as different.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Row:
    """What is said of one config. A text in the place of a number is an error."""

    name: str
    total: int | str
    active: int | str
    per_token: float | str
    cache: int | str
    devices: int | str
    weights: int | None
    hf_mem_per_token: int | str
    hf_mem_cache: int | str
    hf_mem_devices: int | str
    gpustack_memory: int | str
    gpustack_devices: int | str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="pattern of the configs' names")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    args = parser.parse_args()
    paths = [path for path in CONFIGS if fnmatch.fnmatch(path.stem, args.only)]
    ours = [day0_answer(path, args.target, args.concurrency) for path in paths]
    asked = [
        {"config": read(path), "context": answer.get("context_length") or 4096, "concurrency": args.concurrency}
        for path, answer in zip(paths, ours, strict=True)
    ]
    theirs = hf_mem_answers(asked)
    target = load_target(args.target)
    memory, node = target.node_memory(), target.devices_per_node.value
    rows = [row(path, answer, other, memory, node) for path, answer, other in zip(paths, ours, theirs, strict=True)]
    print(table(rows))
    print(summary(rows))
    if args.json:
        args.json.write_text(json.dumps([vars(one) for one in rows], indent=1))


def day0_answer(path: Path, target: str, concurrency: int) -> dict[str, Any]:
    """Parameters, cache, devices and weights; `error` where a command refuses."""
    with tempfile.TemporaryDirectory(prefix="day0-bench-") as scratch:
        model = str(write_model(path, Path(scratch) / path.stem))
        found = command("profile", model, "--concurrency", str(concurrency))
        if "error" in found:
            return found
        length = str(found["context_length"])
        # The cache's dtype is given, as a plan takes that of the checkpoint's own quantised cache otherwise.
        plan = command("plan", model, "--target", target, "--context", length, "--concurrency", str(concurrency),
                       "--kv-dtype", "bfloat16")  # fmt: skip
        # All on one device of any size: what a rank holds then is all there is.
        whole = command("plan", model, "--target", target, "--devices", "1", "--tp", "1", "--context", "1",
                        "--device-memory", str(1 << 50))  # fmt: skip
    chosen = whole.get("chosen")
    found["weights"] = chosen["per_device"]["weights"] if chosen else None
    found["devices"] = plan.get("minimum_devices") or plan.get("error") or "none"
    return found


def command(*words: str) -> dict[str, Any]:
    """The JSON of a day0 command, which says `error` where it refuses."""
    line = [sys.executable, "-m", "flows.cli", *words, "--json"]
    done = subprocess.run(line, cwd=PROJECT, capture_output=True, text=True, check=False)
    try:
        value: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"}
    return value


def hf_mem_answers(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """hf-mem's cache for each request, from a process in its own environment."""
    home = HOME / "hf-mem"
    python = home / "bin" / "python"
    if not (home / "lib").exists() or subprocess.run([python, "-c", "import hf_mem"], check=False).returncode:
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", HF_MEM], check=True, stdout=sys.stderr)
    script = Path(__file__).with_name("hf_mem_kv.py")
    done = subprocess.run([python, script], input=json.dumps(asked), capture_output=True, text=True, check=True)
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def row(path: Path, ours: dict[str, Any], other: dict[str, Any], memory: int, node: int) -> Row:
    weights = ours.get("weights")
    failed = ours.get("error")
    cache: int | str = other.get("bytes", other.get("error", ""))
    claim = math.ceil(weights * 1.2) + (2 << 30) if weights else "no weights known"
    return Row(
        name=path.stem.replace("__", "/"),
        total=failed or ours["parameters"]["total"],
        active=failed or ours["parameters"]["active"],
        per_token=failed or ours["kv_cache"]["bytes_per_token"],
        cache=failed or ours["kv_cache"]["bytes_at_context"],
        devices=failed or ours["devices"],
        weights=weights,
        hf_mem_per_token=other.get("per_token", other.get("error", "")),
        hf_mem_cache=cache,
        hf_mem_devices=math.ceil((weights + cache) / memory) if weights and isinstance(cache, int) else "-",
        gpustack_memory=claim,
        gpustack_devices=gpustack_devices(read(path), claim, memory, node) if isinstance(claim, int) else "-",
    )


def gpustack_devices(config: dict[str, Any], claim: int, memory: int, node: int) -> int | str:
    """The fewest devices that its selector takes, with as many nodes as it wants."""
    text = config.get("text_config") or config
    heads, vocab = text.get("num_attention_heads"), text.get("vocab_size")
    usable = int(memory * 0.9)

    def divides(size: int) -> bool:
        return not ((heads and heads % size) or (vocab and vocab % size))

    if claim <= memory * 0.9:
        return 1
    for count in range(2, node + 1):
        if divides(count) and count * usable >= claim:
            return count
    if not divides(node):
        return f"none: {node} devices do not divide {heads} heads and {vocab} words"
    return math.ceil(claim / (node * usable)) * node


def table(rows: list[Row]) -> str:
    lines = [
        "| model | total | active | KV a token | KV of all | devices | hf-mem: KV a token | KV of all | devices "
        "| GPUStack: VRAM | devices |",
        "|---|" + "---:|" * 10,
    ]
    for one in rows:
        cells = [
            count(one.total), count(one.active), number(one.per_token), size(one.cache), number(one.devices),
            versus(number(one.hf_mem_per_token), factor(one.hf_mem_per_token, one.per_token)),
            versus(size(one.hf_mem_cache), factor(one.hf_mem_cache, one.cache)),
            number(one.hf_mem_devices), size(one.gpustack_memory), number(one.gpustack_devices),
        ]  # fmt: skip
        lines.append(f"| {one.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def summary(rows: list[Row]) -> str:
    compared: dict[str, list[tuple[str, float | str, float | str]]] = {
        "hf-mem, KV of a token": [(one.name, one.hf_mem_per_token, one.per_token) for one in rows],
        "hf-mem, KV of all requests": [(one.name, one.hf_mem_cache, one.cache) for one in rows],
        "hf-mem, devices by its total": [(one.name, one.hf_mem_devices, one.devices) for one in rows],
        "GPUStack, devices": [(one.name, one.gpustack_devices, one.devices) for one in rows],
    }
    lines = ["| answer | compared | further than 5 % | too low | no answer | median factor | largest factor |",
             "|---|" + "---:|" * 5 + "---|"]  # fmt: skip
    for what, listed in compared.items():
        pairs = [(name, found) for name, theirs, ours in listed if (found := factor(theirs, ours)) is not None]
        if not pairs:
            lines.append(f"| {what} | 0 | - | - | {len(listed)} | - | - |")
            continue
        off = [found for _, found in pairs if abs(found - 1) > TOLERANCE]
        worst = max(pairs, key=lambda pair: max(pair[1], 1 / pair[1]))
        lines.append(
            f"| {what} | {len(pairs)} | {len(off)} | {sum(found < 1 for found in off)} | {len(listed) - len(pairs)} "
            f"| {statistics.median(found for _, found in pairs):.2f} | {worst[1]:.3g} ({worst[0]}) |"
        )
    return "\n".join(lines)


def factor(theirs: float | str, ours: float | str) -> float | None:
    """Theirs over ours; None where one of the two is no number."""
    if isinstance(theirs, str) or isinstance(ours, str) or not theirs or not ours:
        return None
    return theirs / ours


def versus(text: str, by: float | None) -> str:
    return text if by is None or abs(by - 1) <= TOLERANCE else f"{text} (x {by:.3g})"


def number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def count(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value / 1e9:,.2f} B"


def size(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value / 2**30:,.1f} GiB"


if __name__ == "__main__":
    main()
