"""The clock of a timing: one call at a time with cold caches, and the copies whose bandwidth calls are held against.

It is made before any kernel is loaded: its functions are those from then.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tasks.kernels import load
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.timing_records import STREAMING_COPY

#: What is read between calls: several times the largest cache of a server CPU's socket share, and a GPU's.
_FLUSH = 256 << 20
#: What is copied to measure the bandwidth, each of source and destination.
_COPY = 512 << 20
_now, _Event = time.perf_counter, torch.cuda.Event


class Clock:
    """Times calls on one device, and copies on all of torch's threads: torch's, and on the CPU one whose stores go
    past the caches, where its library is given.
    """

    def __init__(self, device: str, streaming_copy: str | None) -> None:
        self._type = torch.device(device).type
        self._flushed = torch.ones(_FLUSH // 4, device=device)
        self._source = torch.ones(_COPY // 4, device=device)
        self._destination = torch.zeros_like(self._source)
        self._copies: list[Callable[[], Any]] = [lambda: self._destination.copy_(self._source)]
        if streaming_copy:
            self._copies.append(self._streaming(Path(streaming_copy)))
        self._copied: list[list[float]] = [[] for _ in self._copies]

    def _streaming(self, library: Path) -> Callable[[], Any]:
        definition = KernelDefinition(STREAMING_COPY)
        load.load(definition, "cpu", library)
        copy = load.out_operator(definition, "cpu")
        assert copy is not None
        return lambda: copy(self._source, out0=self._destination)

    def copy(self) -> None:
        """One turn of each copy."""
        for run, seconds in zip(self._copies, self._copied, strict=True):
            seconds.append(self.time(run)[0])

    @property
    def bandwidth(self) -> float | None:
        """Of the fastest copy, bytes a second read and written."""
        medians = [statistics.median(seconds) for seconds in self._copied if seconds]
        return 2 * _COPY / min(medians) if medians else None

    def time(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of one call with cold caches, and what it returned."""
        self._flushed.add_(1.0)
        if self._type != "cuda":
            self._synchronise()
            started = _now()
            returned = run()
            self._synchronise()
            return _now() - started, returned
        first, last = (_Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # The device is kept busy until the call has been sent, so that the time of sending it is not in it.
        with contextlib.suppress(RuntimeError):
            torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        first.record()
        returned = run()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1e3, returned

    def _synchronise(self) -> None:
        if self._type != "cpu":
            torch.get_device_module(self._type).synchronize()
