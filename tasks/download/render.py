"""A verification for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from day0.artifacts.snapshot import Fault
from day0.verdict import Verdict
from tasks.download.verify import VerifyReport

#: A checkpoint has hundreds of thousands of tensors; a table for people does not list as many faults.
_ROWS = 20

_COLOUR = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.SKIPPED: "yellow", Verdict.INCONCLUSIVE: "yellow"}


def show_report(root: str, report: VerifyReport) -> None:
    """Print the checks, the faults and the warnings."""
    console = Console()
    console.print(f"{escape(root)}: {report.file_count} files, {report.bytes:,} bytes, {report.tensors:,} tensors")
    table = Table("check", "verdict", Column("why", overflow="fold"))
    for check in report.checks:
        table.add_row(check.name, f"[{_COLOUR[check.verdict]}]{check.verdict}[/]", escape(check.reason))
    console.print(table)
    _faults(console, "fault", report.faults)
    _faults(console, "warning", report.warnings)
    console.print(f"verdict: [bold {_COLOUR[report.verdict]}]{report.verdict}[/]")


def _faults(console: Console, title: str, faults: Sequence[Fault]) -> None:
    if not faults:
        return
    table = Table(title, *(Column(name, overflow="fold") for name in ("file", "tensor", "detail")))
    left: Counter[str] = Counter(fault.kind for fault in faults)
    shown: Counter[str] = Counter()
    for fault in faults:
        if shown[fault.kind] < _ROWS:
            table.add_row(fault.kind, *(escape(text or "") for text in (fault.file, fault.tensor, fault.detail)))
            shown[fault.kind] += 1
    console.print(table)
    for kind in left - shown:
        console.print(f"and {left[kind] - shown[kind]:,} more of kind {kind}; --json lists all")
