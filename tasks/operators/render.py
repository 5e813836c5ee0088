"""Tables of an operator scan for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from day0.artifacts.operators import OperatorReport, Phase
from tasks.operators.records import EXPLICIT

STYLE = {"native": "green", "composite": "green", "fallback": "yellow", "missing": "red", "unknown": "yellow"}
UNITS = ("", "K", "M", "G", "T", "P", "E")


def show_operators(report: OperatorReport, console: Console | None = None) -> None:
    """What each phase calls, then what the target lacks."""
    console = console or Console()
    titles = {"prefill": f"prefill of {report.prompt} tokens", "decode": f"decode of one token at {report.context}"}
    for name, phase in report.phases.items():
        console.print(_phase_table(f"{titles.get(name, name)} on {report.target}", phase))
    if report.gaps:
        table = Table(
            "operator", "status", "phases", "share", "advice", title="gaps, most costly first", title_justify="left"
        )
        for gap in report.gaps:
            status = f"[{STYLE[gap.status]}]{gap.status}[/]"
            table.add_row(gap.name, status, ", ".join(gap.phases), _percent(gap.share), gap.advice)
        console.print(table)
    for check in report.checks:
        console.print(f"{check.verdict}: {check.reason}", highlight=False)


def _phase_table(title: str, phase: Phase) -> Table:
    """Operators by falling share. Those that are there and move nothing, such as views, are counted in the caption."""
    table = Table(title=f"{title}: {_scaled(phase.flops)}FLOP, {_scaled(phase.bytes)}B", title_justify="left")
    table.add_column("operator", overflow="fold")
    for column in ("calls", "FLOP", "bytes", "share"):
        table.add_column(column, justify="right")
    table.add_column("status")
    table.add_column("via", overflow="fold")
    free = [o for o in phase.operators if o.bytes == 0 and o.flops == 0 and o.status in ("native", "composite")]
    for o in phase.operators:
        if o not in free:
            via = "" if o.via in (None, EXPLICIT) else o.via
            status = f"[{STYLE[o.status]}]{o.status}[/]"
            table.add_row(o.name, f"{o.calls:,}", _scaled(o.flops), _scaled(o.bytes), _percent(o.share), status, via)
    if free:
        table.caption = f"and {sum(o.calls for o in free):,} calls of {len(free)} operators that move nothing"
        table.caption_justify = "left"
    return table


def _percent(share: float | None) -> str:
    if share is None:
        return "unknown"
    return f"{share:.1%}" if share == 0 or share >= 0.001 else "<0.1%"


def _scaled(value: float | None) -> str:
    """Three digits and a decimal prefix."""
    if value is None:
        return "unknown"
    unit = 0
    while abs(value) >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {UNITS[unit]}"
