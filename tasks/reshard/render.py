"""A reshard for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table


def show(answer: dict[str, Any], destination: str, dry_run: bool) -> None:
    """Print the files with their sizes, what was dropped, and the totals."""
    console = Console()
    table = Table(
        "file", "bytes", "sha256", title=f"{'would be written to' if dry_run else 'written to'} {destination}"
    )
    for file in answer["files"]:
        table.add_row(file["name"], f"{file['bytes']:,}", (file["sha256"] or "")[:16])
    console.print(table)
    for reason, tensors in _by_reason(answer["dropped"]).items():
        more = f" and {len(tensors) - 1:,} more" if tensors[1:] else ""
        console.print(f"dropped {tensors[0]}{more}: {reason}", highlight=False)
    for check in answer["checks"]:
        console.print(f"{check['name']}: {check['verdict']}, {check['reason']}", highlight=False)
    verb = "to read" if dry_run else "read"
    console.print(
        f"layout {answer['layout']}, {answer['ranks']} rank{'s' if answer['ranks'] > 1 else ''}: "
        f"{decimal(answer['bytes_read'])} {verb}, {decimal(answer['bytes_written'])} "
        f"{'to write' if dry_run else 'written'} ({answer['seconds']:.2f} s)",
        highlight=False,
    )


def _by_reason(dropped: list[dict[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in dropped:
        found.setdefault(entry["reason"], []).append(entry["tensor"])
    return found
