"""The GPU kernels on one GPU: right over the acceptance's sweep, and how fast, against the limits; one table.

    python -m benchmarks.gpu_kernels [--minutes 8] [--kernels NAME...] [--json FILE]
    python -m benchmarks.gpu_kernels --rehearse     # the same flow without a GPU; its numbers mean nothing

Needs torch with CUDA, Triton, pydantic and PyYAML; the backend `cuda` also needs nvcc, and other
projects' kernels their packages. benchmarks/gpu_kernels.yaml says what is timed, most important first: what the time
does not reach is printed as not measured, and is not kept.

Each backend is accepted first, several at a time (huge cases apart: `day0 kernels accept` runs those). Then kernel,
eager, compiled and a copy of 1 GiB take turns, medians of 15. One turn is a captured graph of calls, each on inputs
and outputs of its own: together larger than the L2 cache, but for the smallest sizes (64 calls). `share` is the bytes
that must move over the time of a call, over the copy's bandwidth. Results are compared with the reference afterwards.
Exit code: 0 all kept, 1 something is not kept, 4 there is no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

if "--rehearse" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as kernels are built and accepted

import torch

from day0.errors import Day0Error, EvidenceMissing, Unavailable
from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge, compare_chunks
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.interpreter import compute_as_devices_do
from tasks.kernels.acceptance.records import Request
from tasks.kernels.acceptance.run import run_worker
from tasks.kernels.acceptance.subject import widened
from tasks.kernels.build import build
from tasks.kernels.definition import CompiledBackend, KernelDefinition, PackageBackend
from tasks.kernels.find import find_kernel
from tasks.kernels.load import as_tuple
from tasks.kernels.providers.packages import missing

OURS = ("triton", "cuda")
#: As fast as compiled code means: within what two runs of the same code differ by.
NOISE = 1.02
ROTATED, COPIED, CALLS, ROUNDS, WARM = 512 << 20, 1 << 30, 64, 15, 2
#: Of the time, what acceptance may take; and seconds that a row needs at least.
FIRST, ROW = 0.5, 15.0
SEED = 20261130


@dataclass
class Backend:
    """One implementation of a kernel: `call`, or why there is none; `here`: what it needs is on this machine."""

    definition: KernelDefinition
    name: str
    accepted: bool = False
    reason: str = ""
    here: bool = True
    call: Callable[..., Any] | None = None


@dataclass
class Way:
    """One contestant; `turn` does `calls` calls, `outputs` are those of the first."""

    turn: Callable[[], Any]
    calls: int
    outputs: Any
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) / self.calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if not options.rehearse and not torch.cuda.is_available():
        print("there is no GPU here; --rehearse runs the same flow without one")
        return 4
    if options.rehearse:
        compute_as_devices_do()
    ends = time.monotonic() + 60 * options.minutes
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    rows = [row for row in rows if not options.kernels or row["kernel"] in options.kernels]
    described = versions()
    print(json.dumps(described), flush=True)
    backends = accepted(list(dict.fromkeys(row["kernel"] for row in rows)), ends, options.rehearse)
    stand = Stand(options.rehearse)
    results = [result for row in rows for result in timed(row, backends[row["kernel"]], stand, ends)]
    print_table(results, stand)
    if options.json:
        options.json.write_text(
            json.dumps({"versions": described, "copy": stand.bandwidth, "results": results}, indent=1)
        )
    refused = [b for of in backends.values() for b in of if b.name in OURS and b.here and not b.accepted]
    kept = bool(results) and not refused and all(result["kept"] for result in results if result["judged"])
    if options.rehearse:
        print("REHEARSAL: the flow ran to its end; these numbers mean nothing")
        broken = [result for result in results if result["reason"]]
        return 1 if broken or refused or not results else 0
    print("all kept" if kept else "not all kept")
    return 0 if kept else 1


def versions() -> dict[str, Any]:
    import triton

    cuda = torch.cuda.is_available()
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if cuda else "none",
        "driver": subprocess.run(asked, capture_output=True, text=True).stdout.strip() if cuda else None,
    }


# Acceptance -----------------------------------------------------------------------------------------------------


def accepted(names: Sequence[str], ends: float, rehearse: bool) -> dict[str, list[Backend]]:
    """Every backend of the kernels, accepted or with the reason, several at a time."""
    found = {
        name: [Backend(d, backend) for d in [find_kernel(name)] for backend in d.backends if backend != "cpu"]
        for name in names
    }
    limit = FIRST * (ends - time.monotonic())
    with ThreadPoolExecutor(max(2, min(12, (os.cpu_count() or 2) - 2))) as pool:
        everything = [backend for of in found.values() for backend in of]
        everything.sort(key=lambda backend: backend.name not in OURS)
        until = time.monotonic() + limit
        list(pool.map(lambda backend: examine(backend, until, rehearse), everything))
    for backend in everything:
        said = "accepted" if backend.accepted else f"not accepted: {backend.reason}"
        print(f"{backend.definition.name} for {backend.name}: {said}", flush=True)
    return found


def examine(backend: Backend, until: float, rehearse: bool) -> None:
    """Accept one backend in a process of its own; huge cases are left out, as there is memory for one at a time."""
    definition, spec = backend.definition, backend.definition.backend(backend.name)
    if rehearse and backend.name != "triton":
        backend.reason, backend.here = "no part of a rehearsal", False
        return
    try:
        if isinstance(spec, PackageBackend) and (absent := missing(spec, backend.name)):
            backend.reason, backend.here = absent, False
            return
        library = build(definition, backend.name).path if isinstance(spec, CompiledBackend) else None
        request = Request(
            folder=str(definition.folder),
            backend=backend.name,
            library=str(library) if library else None,
            device="cpu" if rehearse else "cuda",
            key="CPU" if rehearse else None,
            seed=SEED,
            largest=1 << 10 if rehearse else 1 << 62,
        )
        left = until - time.monotonic()
        if left < 1:
            backend.reason = "there was no time to accept it"
            return
        answer, died = run_worker("tasks.kernels.acceptance.worker", request.to_json(), left)
    except Day0Error as error:
        backend.reason = str(error)
        backend.here = not isinstance(error, EvidenceMissing | Unavailable)
        return
    fault = died if answer is None else answer.get("absent") or answer.get("fault")
    backend.accepted, backend.reason = not fault, fault or ""
    if backend.accepted and library is None:
        backend.call = load.python_function(definition, backend.name)
    elif backend.accepted:
        load.load(definition, backend.name, library)
        backend.call = load.operator(definition)


# Timing ---------------------------------------------------------------------------------------------------------


class Stand:
    """Where contestants take turns, with a copy."""

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.generator = torch.Generator(self.device).manual_seed(SEED)
        self.copied = 1 << 20 if rehearse else COPIED
        source = torch.ones(self.copied, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.copy = self.way(lambda: target.copy_(source), [()])

    @property
    def bandwidth(self) -> float | None:
        """Bytes read and written a second."""
        return 2 * self.copied / self.copy.median if self.copy.seconds else None

    def way(self, run: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> Way:
        """Calls on each of the sets, captured as a graph where that is possible."""
        for args in [*sets[:1]] * WARM:
            run(*args)
        if self.rehearse:
            return Way(lambda: [run(*args) for args in sets], len(sets), run(*sets[0]))
        torch.cuda.synchronize()
        graph, outputs = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for args in sets:
                outputs.append(run(*args))  # all are kept, or one would be written over the other in the cache
        return Way(graph.replay, len(sets), outputs[0])

    def race(self, ways: dict[str, Way]) -> None:
        """Turns of all, in another order each round."""
        names = [*ways, "copy"]
        ways = {**ways, "copy": self.copy}
        for number in range(2 if self.rehearse else WARM + ROUNDS):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds = self.clock(ways[name].turn)
                if self.rehearse or number >= WARM:
                    ways[name].seconds.append(seconds)

    def clock(self, turn: Callable[[], Any]) -> float:
        if self.rehearse:
            started = time.perf_counter()
            turn()
            return time.perf_counter() - started
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        turn()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3


def timed(row: dict[str, Any], backends: list[Backend], stand: Stand, ends: float) -> list[dict[str, Any]]:
    """A result for each accepted backend, and which of ours is judged: the fastest."""
    ready = [backend for backend in backends if backend.call is not None]
    described = {"kernel": row["kernel"], "title": row["title"], "judged": True, "kept": False}
    if not ready:
        return [described | {"backend": "none", "reason": "no backend is accepted"}]
    if time.monotonic() > ends - (0 if stand.rehearse else ROW):
        return [described | {"backend": "none", "reason": "not measured: the time was up"}]
    print(f"{row['kernel']}: {row['title']}", file=sys.stderr, flush=True)
    try:
        results = [described | result for result in raced(row, ready, stand)]
    except (Fault, RuntimeError) as error:  # the framework's, the compiler's or a kernel's: this row's, by name
        return [described | {"backend": "none", "reason": f"{type(error).__name__}: {error}".splitlines()[0]}]
    finally:
        gc.collect()
        if not stand.rehearse:
            torch.cuda.empty_cache()
    ours = [result for result in results if result["backend"] in OURS]
    best = min(ours, key=lambda result: result["seconds"], default=None)
    for result in results:
        result["judged"] = result is best
    return results


def raced(row: dict[str, Any], ready: list[Backend], stand: Stand) -> list[dict[str, Any]]:
    definition = ready[0].definition
    case = {**row["case"], **(row["tiny"] if stand.rehearse else {})}
    moved = definition.bytes(case, 2)
    count = 2 if stand.rehearse else int(max(2, min(CALLS, ROTATED // moved)))
    sets = [tuple(definition.make(case, torch.bfloat16, stand.generator, stand.device)) for _ in range(count)]
    framework = topk_router if row["kernel"] == "router_topk" else definition.baseline
    torch._dynamo.reset()
    compiled = torch.compile(framework, dynamic=False, backend="eager" if stand.rehearse else "inductor")
    ways = {backend.name: stand.way(backend.call, sets) for backend in ready if backend.call}
    ways |= {"eager": stand.way(framework, sets), "compiled": stand.way(compiled, sets)}
    stand.race(ways)
    bandwidth = stand.bandwidth
    assert bandwidth is not None
    results = []
    for backend in ready:
        seconds = ways[backend.name].median
        share = row.get("bytes", moved) / seconds / bandwidth
        faster = ways["compiled"].median / seconds
        wanted = row.get("over_compiled", 1 / NOISE)
        checked(definition, sets[0], backend, ways[backend.name], f"{row['kernel']}, {row['title']}, as timed")
        results.append(
            {
                "backend": backend.name,
                "seconds": seconds,
                "eager": ways["eager"].median,
                "compiled": ways["compiled"].median,
                "share": share,
                "over_compiled": faster,
                "limits": {"share": row.get("share"), "over_compiled": row.get("over_compiled", 1)},
                "kept": share >= row.get("share", 0) and faster >= wanted,
                "reason": "",
            }
        )
    return results


def checked(definition: KernelDefinition, args: tuple[Any, ...], backend: Backend, way: Way, place: str) -> None:
    """Raises Fault: what was computed while it was timed is wrong; of what works in place, one more call."""
    expected = as_tuple(definition.reference(*args))
    found = as_tuple(way.outputs)
    if definition.schema.mutates and backend.call:
        mutated = [at for at, argument in enumerate(definition.arguments) if argument.mutated]
        given = [value.clone() if isinstance(value, torch.Tensor) else value for value in args]
        for at in mutated:
            given[at].view(torch.uint8).fill_(0x7F)
        expected = as_tuple(definition.reference(*given))
        backend.call(*given)
        found = tuple(given[at] for at in mutated)
    if compare := definition.comparable:
        wide = tuple(widened(value) for value in args)
        found, expected = (tuple(t.float() for t in as_tuple(compare(wide, of))) for of in (found, expected))
    judge = Judge("bfloat16", definition.file.tolerance["bfloat16"])
    for number, (got, ours) in enumerate(zip(found, expected, strict=True)):
        if got.dtype == torch.float8_e4m3fn:
            neighbours(got.float(), ours.float(), f"{place}: output {number}")
        else:
            compare_chunks(got, ours, judge, number, place)


def neighbours(got: torch.Tensor, ours: torch.Tensor, place: str) -> None:
    """Raises Fault: FP8 codes are further apart than a tie that was rounded either way, or many are apart."""
    apart = got != ours
    apart &= ~(got.isnan() & ours.isnan())
    far = apart & ~((got - ours).abs() <= ours.abs() / 7 + 2**-9)
    if far.any() or float(apart.float().mean()) > 1e-3:
        raise Fault(
            "error", f"{place}: {int(apart.sum())} codes differ from the framework's, {int(far.sum())} of them far"
        )


def topk_router(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    scoring: str,
    groups: int,
    groups_kept: int,
    renormalise: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As models' own code does it, by torch.topk (transformers, DeepSeek-V3): the reference sorts all, for ties."""
    wide = logits.float()
    if scoring == "softmax":
        scores = wide.softmax(-1)
    else:
        scores = wide.sigmoid() if scoring == "sigmoid" else torch.nn.functional.softplus(wide).sqrt()
    chosen_by = scores if bias is None else scores + bias
    if groups > 1:
        members = chosen_by.view(-1, groups, logits.shape[1] // groups)
        value = members.topk(2, dim=-1).values.sum(-1) if bias is not None else members.amax(-1)
        kept = torch.zeros_like(value).scatter_(1, value.topk(groups_kept, dim=-1, sorted=False).indices, 1)
        chosen_by = members.masked_fill(kept.unsqueeze(-1) == 0, float("-inf")).flatten(1)
    ids = chosen_by.topk(k, dim=-1).indices
    weights = scores.gather(1, ids)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, ids.to(torch.int32)


def print_table(results: list[dict[str, Any]], stand: Stand) -> None:
    if stand.bandwidth:
        print(f"\ncopy: {stand.bandwidth / 1e9:.0f} GB/s read and written")
    print(f"{'kernel':24} {'size':38} {'backend':9} {'us':>9} {'eager':>9} {'compiled':>9} {'share':>7} {'x comp.':>8}")
    for result in results:
        line = f"{result['kernel']:24} {result['title']:38} {result['backend']:9} "
        if result.get("reason"):
            print(f"{line}not kept: {result['reason']}")
            continue
        times = " ".join(f"{result[name] * 1e6:9.1f}" for name in ("seconds", "eager", "compiled"))
        line += f"{times} {result['share']:6.1%} {result['over_compiled']:8.2f}"
        limits = result["limits"]
        wanted = [f"share {limits['share']:.0%}"] if limits["share"] else []
        wanted.append(f"{limits['over_compiled']} x compiled")
        print(f"{line}  {'kept' if result['kept'] else 'not kept'}: {', '.join(wanted)}" if result["judged"] else line)


if __name__ == "__main__":
    raise SystemExit(main())
