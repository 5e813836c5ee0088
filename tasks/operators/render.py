"""Tables of an operator scan for people."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from day0.artifacts.operators import Graph, News, OperatorReport, Phase
from tasks.operators.records import EXPLICIT

STYLE = {"native": "green", "composite": "green", "fallback": "yellow", "missing": "red", "unknown": "yellow"}
#: What a call does to graph capture, in words; what is captured, or not known, is not said.
SEVERITY = {"breaks": "ends where a value is read on the host", "fails": "fails at"}
MOST_CONFLICTS = 8
UNITS = ("", "K", "M", "G", "T", "P", "E")


def show_operators(report: OperatorReport, console: Console | None = None) -> None:
    """What each phase calls, then what the target lacks."""
    console = console or Console()
    if report.source == "formulas":
        console.print(
            f"{report.model} is not known to the library: operators by the formulas of its family, not traced"
        )
    titles = {"prefill": f"prefill of {report.prompt} tokens", "decode": f"decode of one token at {report.context}"}
    for name, phase in report.phases.items():
        console.print(_phase_table(f"{titles.get(name, name)} on {report.target}", phase))
        if phase.native is not None and report.gaps:
            apart = f", {_percent(phase.composite)} of it taken apart" if phase.composite else ""
            console.print(
                f"{report.target}'s own kernels take {_percent(phase.native)} of its time{apart}", highlight=False
            )
        for correction in phase.corrections:
            console.print(
                f"{correction.what}: {_scaled(correction.flops)}FLOP. {correction.reason}",
                highlight=False,
                soft_wrap=True,
            )
    if report.gaps:
        console.print(f"gaps of {report.target}, most costly first", style="italic")
    for gap in report.gaps:
        share = f"{_percent(gap.share)} of {' and '.join(gap.phases)}"
        status = "[red]wrong[/]" if gap.measured == "wrong" else _status(gap.status)
        console.print(f"{gap.name}  {status}  {share}\n  {gap.advice}", highlight=False, soft_wrap=True)
    for gap in report.slow:
        share = f"{_percent(gap.share)} of {' and '.join(gap.phases)}"
        console.print(f"{gap.name}  [yellow]slow[/]  {share}\n  {gap.advice}", highlight=False, soft_wrap=True)
    _show_reach(report, console)
    _show_capture(report, console)
    _show_conflicts(report, console)
    if report.graph:
        _show_graph(report.graph, console)
    if report.news:
        _show_news(report.news, console)
    for check in report.checks:
        console.print(f"{check.verdict}: {check.reason}", highlight=False, soft_wrap=True)


def _show_reach(report: OperatorReport, console: Console) -> None:
    """What to write first."""
    if not report.gaps:
        return
    for reach in report.reach:
        wanted = ", ".join(reach.operators) or "nothing more"
        console.print(
            f"{reach.phase} to {reach.share:.0%} of its time in own kernels: {wanted}", highlight=False, soft_wrap=True
        )
    lacking = [need for need in report.first_token if need.status not in ("native", "composite")]
    if lacking:
        names = ", ".join(need.name for need in lacking)
        console.print(f"for a first token, in order: {names}", highlight=False, soft_wrap=True)


def _show_capture(report: OperatorReport, console: Console) -> None:
    """What stands in the way of a captured graph."""
    operators = [o for phase in report.phases.values() for o in phase.operators]
    for severity, words in SEVERITY.items():
        names = dict.fromkeys(o.name for o in operators if o.graph == severity)
        if names:
            console.print(f"graph capture {words}: {', '.join(names)}", highlight=False, soft_wrap=True)


def _show_conflicts(report: OperatorReport, console: Console) -> None:
    """Where weaker evidence says otherwise, or a vendor's own tests fail."""
    operators = [o for phase in report.phases.values() for o in phase.operators]
    said = list(dict.fromkeys(conflict for o in operators for conflict in o.conflicts))
    for conflict in said[:MOST_CONFLICTS]:
        console.print(f"[yellow]evidence differs[/]: {conflict}", highlight=False, soft_wrap=True)
    if len(said) > MOST_CONFLICTS:
        console.print(f"and {len(said) - MOST_CONFLICTS} more such (--json has all)", highlight=False)


def _show_graph(graph: Graph, console: Console) -> None:
    if graph.failed:
        return
    layers = f"{graph.layers} layer{'s' if graph.layers > 1 else ''}, one of each kind"
    title = f"graph: {sum(graph.operators.values()):,} calls of {len(graph.operators)} operators in {layers}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("pattern")
    table.add_column("found", justify="right")
    table.add_column("fused", overflow="fold")
    for pattern in graph.patterns:
        if pattern.count:
            table.add_row(pattern.name, f"{pattern.count:,}", pattern.fused or "[yellow]not known to be[/]")
    console.print(table)


def _show_news(news: News, console: Console) -> None:
    console.print(f"since {news.against}", style="italic")
    lines = {
        "new, and there": ", ".join(news.there),
        "new, to be written": ", ".join(f"{gap.name} ({gap.work}, {gap.status})" for gap in news.operators),
        "other dtypes": ", ".join(f"{name} ({', '.join(dtypes)})" for name, dtypes in news.dtypes.items()),
        "no longer called": ", ".join(news.gone),
        "work": ", ".join(f"{count} {work}" for work, count in news.work.items()),
    }
    for title, text in lines.items():
        if text:
            console.print(f"{title}: {text}", highlight=False, soft_wrap=True)
    if not news.there and not news.operators:
        console.print("no new operator")


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
    if value < 0:
        return f"-{_scaled(-value)}"
    unit = 0
    while abs(value) >= 1000 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {UNITS[unit]}"
