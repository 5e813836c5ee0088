"""Tables of an operator scan for people."""

from __future__ import annotations

from rich import box
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
        console.print(f"gaps of {report.target}, most costly first", style="italic")
    for gap in report.gaps:
        share = f"{_percent(gap.share)} of {' and '.join(gap.phases)}"
        console.print(f"{gap.name}  {_status(gap.status)}  {share}\n  {gap.advice}", highlight=False, soft_wrap=True)
    for check in report.checks:
        console.print(f"{check.verdict}: {check.reason}", highlight=False, soft_wrap=True)


def _phase_table(title: str, phase: Phase) -> Table:
    """Operators by falling share. Those that are there and move nothing, such as views, are counted in the caption."""
    title = f"{title}: {_scaled(phase.flops)}FLOP, {_scaled(phase.bytes)}B"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("operator", overflow="fold")
    for column in ("calls", "FLOP", "bytes", "share"):
        table.add_column(column, justify="right")
    table.add_column("status")
    free = [o for o in phase.operators if o.bytes == 0 and o.flops == 0 and o.status in ("native", "composite")]
    for o in phase.operators:
        if o not in free:
            via = "" if o.via in (None, EXPLICIT) else f"\n  [dim]via {o.via}[/]"
            numbers = (f"{o.calls:,}", _scaled(o.flops), _scaled(o.bytes), _percent(o.share))
            table.add_row(o.name + via, *numbers, _status(o.status))
    if free:
        table.caption = f"and {sum(o.calls for o in free):,} calls of {len(free)} operators that move nothing"
        table.caption_justify = "left"
    return table


def _status(status: str) -> str:
    return f"[{STYLE[status]}]{status}[/]"


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
