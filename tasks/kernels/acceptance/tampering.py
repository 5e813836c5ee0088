"""What a kernel must leave alone: torch's functions, Python's clocks, and the process's threads."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tasks.kernels.acceptance.faults import Fault

_MODULES = (
    "time",
    "torch",
    "torch.testing",
    "torch.library",
    "torch.nn.functional",
    "torch.cuda",
    "torch.cuda.streams",
    "torch._C",
    "torch._ops",
    "torch.autograd.profiler",
    "tasks.kernels.acceptance.bridge",
    "tasks.kernels.acceptance.errors",
    "tasks.kernels.acceptance.examine",
    "tasks.kernels.acceptance.huge",
    "tasks.kernels.acceptance.layouts",
    "tasks.kernels.acceptance.memory_checks",
    "tasks.kernels.acceptance.poison",
    "tasks.kernels.acceptance.repeat_checks",
    "tasks.kernels.acceptance.subject",
    "tasks.kernels.acceptance.value_checks",
    "tasks.kernels.timing_clock",
    "tasks.kernels.timing_ways",
)
_CLASSES = ("torch.Tensor", "torch.cuda.Event", "torch.cuda.Stream", "torch.Generator")
_TASKS = Path("/proc/self/task")
#: Threads of a pool spin for a moment before they sleep.
_SETTLE = 0.3
_WATCH = 0.2


class Snapshot:
    """The functions and classes that a verdict rests on, as they are now."""

    def __init__(self) -> None:
        self._found = _collect()
        self._clock = (time.perf_counter, time.sleep)

    def check(self) -> None:
        """Raises Fault: one of them is another now."""
        now = _collect()
        for name, value in self._found.items():
            if now.get(name) is not value:
                raise Fault("tampered", f"{name} was replaced while the kernel was loaded or ran")


def _collect() -> dict[str, Any]:
    places: list[tuple[str, Any]] = [(name, sys.modules[name]) for name in _MODULES if name in sys.modules]
    for name in _CLASSES:
        module, _, attribute = name.rpartition(".")
        places.append((name, getattr(sys.modules[module], attribute)))
    return {
        f"{place}.{name}": value
        for place, holder in places
        for name, value in vars(holder).items()
        if not name.startswith("__")
        and not isinstance(value, ModuleType)
        and (callable(value) or isinstance(value, property | staticmethod | classmethod))
    }


def threads() -> dict[str, int]:
    """CPU time of each of the process's threads, in clock ticks; empty where the system has no such list."""
    found = {}
    for path in _TASKS.glob("*/stat") if _TASKS.is_dir() else ():
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found[path.parent.name] = int(fields[11]) + int(fields[12])
    return found


def check_threads(before: dict[str, int], pool: int) -> int:
    """How many threads are new since `before`.

    Threads of a pool that sleep are no fault, up to `pool` of them.

    Raises:
        Fault: a new thread goes on working, or there are more.
    """
    gc.collect()
    time.sleep(_SETTLE)
    first = threads()
    time.sleep(_WATCH)
    new = {name: ticks for name, ticks in threads().items() if name not in before}
    ticks_a_second = os.sysconf("SC_CLK_TCK")
    for name, ticks in new.items():
        busy = (ticks - first.get(name, ticks)) / ticks_a_second
        if busy > 0.25 * _WATCH:
            raise Fault("threads", f"a thread that the kernel started still works {_SETTLE + _WATCH:g} s after it")
    if len(new) > pool:
        raise Fault("threads", f"the kernel left {len(new)} threads behind")
    return len(new)


def settled() -> None:
    """Start torch's own pool, so that its threads are not taken for the kernel's."""
    wide = torch.ones(1 << 20)
    for _ in range(3):
        wide = wide * 1.0
