"""The rows of gpu_kernels.py, timed in a process of its own: `python -m benchmarks.gpu_kernels_rows REQUEST`.

It prints `begun: N` when it turns to row N, and `row: {…}` with what it measured. What fails is that row's or that
contestant's; an error of CUDA, after which nothing works in a process, ends it, and whoever started it starts another
for the rows that are left. With `warm` in the request everything is compiled once, for the caches, and nothing timed.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as kernels are built and accepted

import torch

from benchmarks.gpu_kernels import BROKEN, SEED
from tasks.kernels.acceptance.errors import Judge
from tasks.kernels.acceptance.faults import brief
from tasks.kernels.acceptance.interpreter import compute_as_devices_do
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel
from tasks.kernels.load import as_tuple
from tasks.kernels.timing_records import Contender
from tasks.kernels.timing_ways import Entrant, Way, check, enter

ROTATED, COPIED, CALLS, ROUNDS, WARM = 512 << 20, 1 << 30, 64, 15, 2
#: Seconds that a row needs at least, and that one may take: some kernels hang.
LEAST, MOST = 8.0, 100.0


def main() -> int:
    request = json.loads(Path(sys.argv[1]).read_text())
    ends = time.monotonic() + request["seconds"]
    rehearse, warm = request["rehearse"], request["warm"]
    if rehearse:
        compute_as_devices_do()
    stand = Stand(rehearse)
    loaded: dict[str, Entrants] = {}
    for number, row in request["rows"]:
        if time.monotonic() > ends - (0 if rehearse else LEAST):
            return 0
        print(f"begun: {number}", flush=True)
        faulthandler.dump_traceback_later(MOST, exit=True)
        try:
            if row["kernel"] not in loaded:
                libraries = request["backends"][row["kernel"]]
                loaded[row["kernel"]] = entrants_of(row["kernel"], libraries, "CPU" if rehearse else None)
            found = (
                compiled_once(row, loaded[row["kernel"]], stand) if warm else raced(row, loaded[row["kernel"]], stand)
            )
        except Exception as error:  # of making arguments, or of the reference: this row's, by name
            found = [{"backend": "none", "reason": brief(error)}]
        faulthandler.cancel_dump_traceback_later()
        print(f"row: {json.dumps([number, found])}", flush=True)
        if any(sign in one["reason"] for one in found for sign in BROKEN):
            return 3
        gc.collect()
        if not rehearse:
            torch.cuda.empty_cache()
    return 0


@dataclass
class Entrants:
    """The backends of a kernel that can be called, and why others cannot."""

    definition: KernelDefinition
    ready: list[Entrant] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


def entrants_of(name: str, libraries: dict[str, str | None], key: str | None) -> Entrants:
    found = Entrants(find_kernel(name))
    for backend, library in libraries.items():
        try:
            found.ready.append(enter(found.definition, Contender(backend=backend, library=library), key))
        except Exception as error:  # whatever a kernel's module raises is its fault, by name
            found.reasons[backend] = brief(error)
    return found


@dataclass
class Lap:
    """What is timed: `turn` does `calls` calls, `outputs` are those of the first. `captured`: as a graph."""

    turn: Callable[[], Any]
    calls: int
    outputs: Any
    captured: bool


class Stand:
    """Where contestants take turns, with a copy."""

    def __init__(self, rehearse: bool) -> None:
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.generator = torch.Generator(self.device).manual_seed(SEED)
        self.copied = 1 << 20 if rehearse else COPIED
        source = torch.ones(self.copied, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.copy = self.lap(lambda: target.copy_(source), [()])

    def lap(self, run: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> Lap:
        """Calls on each of the sets, captured as a graph where that is possible."""
        for args in [*sets[:1]] * WARM:
            run(*args)

        def plain() -> None:
            for args in sets:
                run(*args)

        if self.rehearse:
            return Lap(plain, len(sets), run(*sets[0]), True)
        torch.cuda.synchronize()
        graph, outputs = torch.cuda.CUDAGraph(), []
        try:
            with torch.cuda.graph(graph):
                for args in sets:
                    outputs.append(run(*args))  # all are kept, or one would be written over the other in the cache
        except RuntimeError as error:
            if "captur" not in str(error):
                raise
            torch.cuda.synchronize()
            return Lap(plain, len(sets), run(*sets[0]), False)
        return Lap(graph.replay, len(sets), outputs[0], True)

    def race(self, laps: dict[str, Lap]) -> dict[str, float]:
        """Seconds of a call of each and of the copy: medians of turns, in another order each round."""
        names = [*laps, "copy"]
        everyone = {**laps, "copy": self.copy}
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(2 if self.rehearse else WARM + ROUNDS):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                taken = self.clock(everyone[name].turn)
                if self.rehearse or number >= WARM:
                    seconds[name].append(taken / everyone[name].calls)
        return {name: statistics.median(its) for name, its in seconds.items()}

    def clock(self, turn: Callable[[], Any]) -> float:
        if self.rehearse:
            started = time.perf_counter()
            turn()
            return time.perf_counter() - started
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        turn()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / 1e3


def contestants(
    row: dict[str, Any], entrants: Entrants, stand: Stand
) -> tuple[dict[str, Any], int, dict[str, Callable[..., Any]]]:
    """The case, how many sets of arguments to rotate, and what is called on them."""
    definition = entrants.definition
    case = {**row["case"], **(row["tiny"] if stand.rehearse else {})}
    count = 2 if stand.rehearse else int(max(2, min(CALLS, ROTATED // definition.bytes(case, 2))))
    framework = topk_router if row["kernel"] == "router_topk" else definition.baseline
    torch._dynamo.reset()
    compiled = torch.compile(framework, dynamic=False, backend="eager" if stand.rehearse else "inductor")
    calls = {one.backend: one.adapter or one.call for one in entrants.ready}
    return case, count, {**calls, "eager": framework, "compiled": compiled}


def compiled_once(row: dict[str, Any], entrants: Entrants, stand: Stand) -> list[dict[str, Any]]:
    """Only for what lies in caches afterwards: what fails will fail again, where it is told."""
    case, _, calls = contestants(row, entrants, stand)
    args = tuple(entrants.definition.make(case, torch.bfloat16, stand.generator, stand.device))
    for name, call in calls.items():
        try:
            call(*args) if name != "eager" else None
        except Exception as error:
            print(f"{row['kernel']}, {row['title']}: {name}: {brief(error)}", file=sys.stderr, flush=True)
    return []


def raced(row: dict[str, Any], entrants: Entrants, stand: Stand) -> list[dict[str, Any]]:
    """A result for each backend; one that fails has a reason, and the others go on."""
    definition = entrants.definition
    case, count, calls = contestants(row, entrants, stand)
    sets = [tuple(definition.make(case, torch.bfloat16, stand.generator, stand.device)) for _ in range(count)]
    laps, reasons = dict[str, Lap](), dict(entrants.reasons)
    for name, call in calls.items():
        try:
            laps[name] = stand.lap(call, sets)
        except Exception as error:  # the framework's, the compiler's or a kernel's: this contestant's, by name
            reasons[name] = brief(error)
    seconds = stand.race(laps)
    bandwidth = 2 * stand.copied / seconds["copy"]
    for entrant in (one for one in entrants.ready if one.backend in laps):
        try:
            checked(definition, sets[0], entrant, laps[entrant.backend], f"{row['kernel']}, {row['title']}, as timed")
        except Exception as error:
            reasons[entrant.backend] = brief(error)
    return [
        {
            "backend": backend,
            "seconds": seconds.get(backend),
            "eager": seconds.get("eager"),
            "compiled": seconds.get("compiled"),
            "moved": row.get("bytes", definition.bytes(case, 2)),
            "bandwidth": bandwidth,
            "reason": reasons.get(backend, ""),
            "notes": [f"{name} failed: {reasons[name]}" for name in ("eager", "compiled") if name in reasons]
            + [f"{name} cannot be captured" for name, lap in laps.items() if not lap.captured],
        }
        for backend in [*(one.backend for one in entrants.ready), *entrants.reasons]
    ]


def checked(definition: KernelDefinition, args: tuple[Any, ...], entrant: Entrant, lap: Lap, place: str) -> None:
    """Raises Fault: what was computed while it was timed is wrong; of what works in place, one more call."""
    given, found = args, as_tuple(lap.outputs)
    if definition.schema.mutates:
        mutated = [at for at, argument in enumerate(definition.arguments) if argument.mutated]
        given = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in args)
        for at in mutated:
            given[at].view(torch.uint8).fill_(0x7F)
    expected = as_tuple(definition.reference(*given))
    if definition.schema.mutates:
        (entrant.adapter or entrant.call)(*given)
        found = tuple(given[at] for at in mutated)
    judge = Judge("bfloat16", definition.file.tolerance["bfloat16"])
    check(definition, Way(entrant.backend, lap.turn, entrant, judge), args, found, expected, place)


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


if __name__ == "__main__":
    raise SystemExit(main())
