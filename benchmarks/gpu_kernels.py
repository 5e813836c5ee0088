"""The GPU kernels on one GPU: right over the acceptance's sweep, and how fast, against the limits; one table.

    python -m benchmarks.gpu_kernels [--minutes 8] [--kernels NAME...] [--json FILE]
    python -m benchmarks.gpu_kernels --rehearse     # the same flow without a GPU; its numbers mean nothing

Needs torch with CUDA, Triton and what gpu_kernels_needs.py names, and says at once what of it is missing; the backend
`cuda` also needs nvcc, and other projects' kernels their packages. benchmarks/gpu_kernels.yaml says what is timed, most
important first.

Each backend is accepted first, each dtype in a process of its own, several at a time (huge cases apart: `day0 kernels
accept` runs those); what is timed later is compiled beside that. Then, in one process (gpu_kernels_rows.py), kernel,
eager, compiled and a copy of 1 GiB take turns, medians of 15. One turn is a captured graph of calls, each on inputs
and outputs of its own: together larger than the L2 cache, but for the smallest sizes (64 calls). `share` is the bytes
that must move over the time of a call, over the bandwidth of the row's own copy. Results are compared with the
reference afterwards. What is not accepted for want of time is accepted after the timing.

Rows are printed, and FILE is written anew, as they are measured; the table is printed at the end, whatever failed or
was ended: what fails, hangs or crashes costs its own row. Exit code: 0 all kept, 1 something is not kept or not
measured, 2 a package is missing, 4 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # before anything that may be missing is imported
    from benchmarks.gpu_kernels_needs import leave_where_something_is_missing

    leave_where_something_is_missing()

import yaml

from benchmarks.gpu_kernels_table import HEAD, OURS, judged, line_of
from day0 import deadline, home, process
from day0.errors import Day0Error, EvidenceMissing, Unavailable
from day0.files import write_json
from tasks.kernels.acceptance.faults import brief
from tasks.kernels.acceptance.records import Request
from tasks.kernels.acceptance.run import run_worker
from tasks.kernels.build import build
from tasks.kernels.definition import CompiledBackend, KernelDefinition, PackageBackend
from tasks.kernels.find import find_kernel
from tasks.kernels.providers.packages import missing

SEED = 20261130
#: After such an error nothing of CUDA works in a process.
BROKEN = ("CUDA error", "illegal memory access", "device-side assert", "misaligned address")
#: Of the time, what acceptance may take before the timing; and seconds that are worth starting one for.
FIRST, WORTH = 0.45, 15.0
#: After the time is up: by then the table is printed, even if a process cannot be ended.
GRACE = 20.0
NO_TIME = "there was no time to accept it"
#: Kept from one process to the next.
CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}


@dataclass
class Backend:
    """One implementation of a kernel. `here`: what it needs is on this machine; `reasons`: why a dtype is not
    accepted, nothing where it is; `died`: it ends processes, so that it is not timed."""

    definition: KernelDefinition
    name: str
    here: bool = True
    absent: str = ""
    library: str | None = None
    prepared: bool = False
    died: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def reason(self) -> str:
        """Why it is not accepted; nothing: it is."""
        if self.absent:
            return self.absent
        untried = [dtype for dtype in self.definition.file.dtypes if dtype not in self.reasons]
        found = [f"{dtype}: {why}" for dtype, why in self.reasons.items() if why]
        return "; ".join([*found, f"{NO_TIME} in {', '.join(untried)}"] if untried else found)

    def __str__(self) -> str:
        return f"{self.definition.name} for {self.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--kernels", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    described = versions()
    print(json.dumps(described), flush=True)
    if not options.rehearse and described["device"] == "none":
        print("there is no GPU here; --rehearse runs the same flow without one")
        return 4
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    rows = [row for row in rows if not options.kernels or row["kernel"] in options.kernels]
    names = list(dict.fromkeys(row["kernel"] for row in rows))
    run = Run(rows, {name: _backends(name) for name in names}, ends, options.rehearse, described)
    run.file = options.json
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    last = threading.Timer(60 * options.minutes + GRACE, lambda: (run.save(), run.conclude(), os._exit(1)))
    last.daemon = True
    last.start()
    try:
        run.everything()
    finally:
        deadline.cancel_all("the benchmark ends")
        last.cancel()
        run.save()
        kept = run.conclude()
    return 0 if kept else 1


def versions() -> dict[str, Any]:
    """Of the software and the device, asked without opening the device in this process."""
    from importlib.metadata import version

    asked = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()[0]
        device, driver, capability = (part.strip() for part in done.split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        device, driver, capability = "none", "", ""
    return {
        "torch": version("torch"),
        "triton": version("triton"),
        "python": platform.python_version(),
        "device": device,
        "driver": driver,
        "architecture": f"sm_{capability.replace('.', '')}" if capability else None,
    }


def _backends(name: str) -> list[Backend]:
    definition = find_kernel(name)
    return [Backend(definition, backend) for backend in definition.backends if backend != "cpu"]


class Run:
    """Acceptance, timing, and acceptance of what is left; what is known at any time is in `results`."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        backends: dict[str, list[Backend]],
        ends: float,
        rehearse: bool,
        described: dict[str, Any],
    ) -> None:
        self.rows, self.backends, self.ends, self.rehearse = rows, backends, ends, rehearse
        self.described = described
        self.file: Path | None = None
        self.measured: dict[int, list[dict[str, Any]]] = {}
        self.failed: dict[int, str] = {}

    @property
    def all(self) -> list[Backend]:
        """Ours first, of the most important rows first."""
        return sorted((b for of in self.backends.values() for b in of), key=lambda b: b.name not in OURS)

    def everything(self) -> None:
        self.accept(time.monotonic() + FIRST * (self.ends - time.monotonic()), warm=not self.rehearse)
        for backend in self.all:
            print(f"{backend}: {backend.reason or 'accepted'}", flush=True)
        self.save()
        self.time()
        self.accept(self.ends)

    # Acceptance -------------------------------------------------------------------------------------------------

    def accept(self, until: float, warm: bool = False) -> None:
        """What has no verdict yet, several at a time; `warm`: beside them, what is timed later is compiled."""
        tries = [(b, dtype) for b in self.all for dtype in b.definition.file.dtypes if dtype not in b.reasons]
        pool = ThreadPoolExecutor(max(2, min(12, (os.cpu_count() or 2) - 2)))
        try:
            if warm:
                pool.submit(self._warm, until)
            list(pool.map(lambda one: self._examine(one[0], one[1], until), tries))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _examine(self, backend: Backend, dtype: str, until: float) -> None:
        """Accept one dtype of a backend. Huge cases are left out: there is memory for one at a time."""
        if not self._prepare(backend) or until - time.monotonic() < WORTH:
            return
        request = Request(
            folder=str(backend.definition.folder),
            backend=backend.name,
            library=backend.library,
            device="cpu" if self.rehearse else "cuda",
            key="CPU" if self.rehearse else None,
            seed=SEED,
            largest=1 << 10 if self.rehearse else 1 << 62,
            dtypes=(dtype,),
        )
        extra = {"TRITON_INTERPRET": "1"} if self.rehearse else {}
        try:
            left = until - time.monotonic()
            answer, died = run_worker("tasks.kernels.acceptance.worker", request.to_json(), left, extra)
        except Exception as error:  # of this one, whatever it is
            backend.reasons[dtype] = brief(error)
            return
        if answer is not None:
            why = backend.reasons[dtype] = answer.get("absent") or answer.get("fault") or ""
            backend.died |= any(sign in why for sign in BROKEN)
        elif until - time.monotonic() > 0:
            backend.reasons[dtype], backend.died = died, True

    def _prepare(self, backend: Backend) -> bool:
        """Whether what a backend needs is here; its library is built once."""
        with backend.lock:
            if backend.prepared:
                return not backend.absent
            backend.prepared = True
            spec = backend.definition.backend(backend.name)
            try:
                if self.rehearse and backend.name != "triton":
                    raise Unavailable("no part of a rehearsal")
                if isinstance(spec, PackageBackend) and (absent := missing(spec, backend.name)):
                    raise Unavailable(absent)
                if isinstance(spec, CompiledBackend):
                    backend.library = str(build(backend.definition, backend.name, self.described["architecture"]).path)
            except Day0Error as error:
                backend.absent = str(error)
                backend.here = not isinstance(error, EvidenceMissing | Unavailable)
            return not backend.absent

    # Timing -----------------------------------------------------------------------------------------------------

    def _warm(self, until: float) -> None:
        try:
            self._rows(list(enumerate(self.rows)), until, lambda line: None, warm=True)
        except Day0Error as error:
            print(f"compiling beforehand: {brief(error)}", file=sys.stderr, flush=True)

    def time(self) -> None:
        """Every row, by new processes where one ends before all are done."""
        left = list(enumerate(self.rows))
        while left:
            begun: list[int] = []
            try:
                self._rows(left, self.ends, lambda line, begun=begun: self._hear(line, begun))
                return
            except process.TimedOut:
                return
            except process.ProcessFailed as error:
                why = _death(error)
                if not begun:
                    self.failed |= {number: f"nothing can be timed: {why}" for number, _ in left}
                    return
                if begun[-1] not in self.measured:
                    self.failed[begun[-1]] = why
            left = [(number, row) for number, row in left if number > begun[-1]]

    def _rows(self, rows: Sequence[tuple[int, Any]], until: float, listen: Any, warm: bool = False) -> None:
        """Raises ProcessFailed, TimedOut: the process ended before all rows were done."""
        seconds = max(1.0, until - time.monotonic())
        usable = {
            name: {b.name: b.library for b in of if self._prepare(b) and not b.died}
            for name, of in self.backends.items()
        }
        rows = [(number, row) for number, row in rows if usable[row["kernel"]]]
        asked = {"rows": rows, "backends": usable, "seconds": seconds, "rehearse": self.rehearse, "warm": warm}
        with tempfile.TemporaryDirectory(prefix="day0-gpu-") as folder:
            request = Path(folder, "request.json")
            request.write_text(json.dumps(asked))
            command = [sys.executable, "-m", "benchmarks.gpu_kernels_rows", str(request)]
            environment = os.environ | CACHES | ({"TRITON_INTERPRET": "1"} if self.rehearse else {})
            process.run_within(seconds, command, cwd=home.PROJECT, env=environment, on_line=listen)

    def _hear(self, line: str, begun: list[int]) -> None:
        if line.startswith("begun: "):
            begun.append(int(line.removeprefix("begun: ")))
        elif line.startswith("row: "):
            number, found = json.loads(line.removeprefix("row: "))
            self.measured[number] = found
            for result in self._judged(number):
                print(line_of(result), flush=True)
            self.save()

    # Results ----------------------------------------------------------------------------------------------------

    def _judged(self, number: int) -> list[dict[str, Any]]:
        row = self.rows[number]
        backends = self.backends[row["kernel"]]
        unfit = [f"{backend}: {backend.reason}" for backend in backends if backend.died or backend.absent]
        usable = [backend for backend in backends if backend.prepared and not backend.absent and not backend.died]
        why = self.failed.get(number) or ("the time was up" if usable or not unfit else "; ".join(unfit))
        return judged(row, self.measured.get(number, []), {backend.name: backend.reason for backend in backends}, why)

    def results(self) -> list[dict[str, Any]]:
        return [result for number in range(len(self.rows)) for result in self._judged(number)]

    def told(self) -> dict[str, str]:
        return {str(backend): backend.reason or "accepted" for backend in self.all}

    def save(self) -> None:
        """Write what is known by now, so that nothing of it is lost with the machine."""
        if self.file:
            saved = {"versions": self.described, "accepted": self.told(), "results": self.results()}
            write_json(self.file, saved)

    def conclude(self) -> bool:
        """Print the table, and what is not accepted; whether everything is kept."""
        results = self.results()
        bandwidths = sorted(result["bandwidth"] for result in results if result.get("bandwidth"))
        print()
        if bandwidths:
            print(f"copy: {bandwidths[len(bandwidths) // 2] / 1e9:.0f} GB/s read and written")
        print(HEAD)
        for result in results:
            print(line_of(result))
        for name, said in self.told().items():
            print(f"{name}: {said}")
        refused = [b for b in self.all if b.name in OURS and b.here and b.reason]
        kept = bool(results) and not refused and all(result["kept"] for result in results if result["judged"])
        if self.rehearse:
            print("REHEARSAL: the flow ran to its end; these numbers mean nothing")
            return not refused and bool(results) and not any(result.get("reason") for result in results)
        unmeasured = sum(not result["seconds"] for result in results if result["judged"])
        kept_or_not = "all kept" if kept else f"not all kept; {unmeasured} of {len(self.rows)} rows not measured"
        print(kept_or_not, flush=True)
        return kept


def _death(error: process.ProcessFailed) -> str:
    if any(line.startswith("Timeout (") for line in error.tail):  # faulthandler's
        return "it took too long, or hung"
    ended = f"code {error.returncode}" if error.returncode >= 0 else signal.Signals(-error.returncode).name
    said = [line.strip() for line in error.tail if line.strip() and not line.startswith(("begun: ", "row: "))]
    return f"the process ended with {ended}{f': {said[-1][:200]}' if said else ''}"


if __name__ == "__main__":
    raise SystemExit(main())
