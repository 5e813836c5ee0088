"""The machine that a measurement was made on, as far as it matters for the numbers."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """CPU model, cores that this process may use, memory in bytes, kernel, cgroup limits, frequency governor.

    What the system does not tell is None.
    """
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or None,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu_quota": _read(Path("/sys/fs/cgroup/cpu.max")),
        "memory": _memory(),
        "kernel": platform.release(),
        "governor": _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "virtual_machine": "hypervisor" in (_field(Path("/proc/cpuinfo"), "flags") or "").split(),
    }


def load_average() -> list[float]:
    """Runnable processes, averaged over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def last_level_cache() -> int:
    """Bytes of the largest cache that CPU 0 tells of; 64 MiB where it tells nothing."""
    sizes = [
        _bytes(text) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size") if (text := _read(path))
    ]
    return max(sizes, default=64 << 20)


def _bytes(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    digits = text.rstrip("KMG")
    return int(digits) * unit if digits.isdigit() else 0


def _memory() -> int | None:
    total = (_field(Path("/proc/meminfo"), "MemTotal") or "").split()
    return int(total[0]) * 1024 if total and total[0].isdigit() else None


def _field(path: Path, name: str) -> str | None:
    """The first `name: value` line of a /proc file."""
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
