"""The peak of a process's memory."""

from __future__ import annotations

from pathlib import Path


def peak_rss() -> int:
    """Bytes that this process held in memory at most, since it became this program.

    Not `ru_maxrss`: that of a process that was started by another keeps the other's peak, if it was higher.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024
