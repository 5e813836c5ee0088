"""Tables of an operator scan for people."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from day0.artifacts.operators import Gap, Graph, News, Operator, OperatorReport, Phase
from day0.verdict import Check
from tasks.operators.costs import work_class
from tasks.operators.records import EXPLICIT
from tasks.operators.support.composites import computing

STYLE = {"native": "green", "composite": "green", "fallback": "yellow", "missing": "red", "unknown": "yellow"}
#: What a call does to graph capture, in words; what is captured, or not known, is not said.
SEVERITY = {"breaks": "ends where a value is read on the host", "fails": "fails at"}
MOST_CONFLICTS = 8
#: Names that a line has; JSON has all.
MOST_NAMES = 16
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
        _show_native(report.target, phase, console)
        for correction in phase.corrections:
            more = "more" if correction.flops > 0 else "less"
            work = f"{_scaled(abs(correction.flops))}FLOP {more}"
            _say(console, f"as engines do it, the work of {correction.what} is {work} than here: {correction.reason}")
    _show_gaps(f"gaps of {report.target}, most costly first", report.gaps, report, console)
    _show_gaps("measured to be slow", report.slow, report, console)
    _show_gaps("only there taken apart, with the share that one kernel would have", report.apart, report, console)
    _show_reach(report, console)
    _show_capture(report, console)
    _show_conflicts(report, console)
    if report.graph:
        _show_graph(report.graph, console)
    if report.news:
        _show_news(report.news, console)
    for check in report.checks:
        _show_check(check, console)


def _say(console: Console, text: str, indent: int = 0) -> None:
    """Text as it is, wrapped at the console's width."""
    console.print(Padding(Text.from_markup(text), (0, 0, 0, indent), expand=False))


def _show_native(target: str, phase: Phase, console: Console) -> None:
    """What of the phase runs on the target, and how."""
    if phase.native is None:
        return
    lacking = 1 - phase.native - (phase.composite or 0)
    known = "known time" if any(o.share is None for o in phase.operators) else "time"
    parts = [f"{target} has one kernel each for {_percent(phase.native)} of its {known}"]
    if phase.composite:
        parts.append(f"takes {_percent(phase.composite)} apart into several, which take longer than that")
    if lacking > 1e-9:
        parts.append(f"{_percent(lacking)} are gaps")
    _say(console, "; ".join(parts))


def _show_gaps(title: str, gaps: tuple[Gap, ...], report: OperatorReport, console: Console) -> None:
    """Each with its shares; what neighbours have in common is said once, after them."""
    if gaps:
        console.print(title, style="italic")
    for (status, advice), alike in itertools.groupby(gaps, lambda gap: (_gap_status(gap), gap.advice)):
        its = list(alike)
        for gap in its[:MOST_NAMES]:
            shares = {phase: _percent(_share_of(gap.name, report.phases[phase])) for phase in gap.phases}
            _say(
                console, f"{gap.name}  {status}  {', '.join(f'{share} of {phase}' for phase, share in shares.items())}"
            )
        if others := [gap.name for gap in its[MOST_NAMES:]]:
            _say(console, f"and with less: {', '.join(others)}")
        _say(console, advice, 2)


def _gap_status(gap: Gap) -> str:
    return {"wrong": "[red]wrong[/]", "slow": "[yellow]slow[/]"}.get(gap.measured or "", _status(gap.status))


def _share_of(name: str, phase: Phase) -> float | None:
    return next(o.kernel_share for o in phase.operators if o.name == name)


def _show_check(check: Check, console: Console) -> None:
    """A verdict, and each part of its reason on a line."""
    first, *others = re.split(r"; (?![^()]*\))", check.reason)
    _say(console, f"{check.verdict}: {escape(first)}")
    for other in others:
        _say(console, escape(other), 2)


def _show_reach(report: OperatorReport, console: Console) -> None:
    """What to write first."""
    for reach in report.reach:
        if report.gaps or report.apart:
            wanted = _some(reach.operators) or "nothing more"
            _say(console, f"one kernel each for {reach.share:.0%} of {reach.phase}: {wanted}")
    lacking = [need for need in report.first_token if need.status not in ("native", "composite")]
    if lacking:
        names = _some([need.name for need in lacking])
        _say(console, f"for a first token, in order: {names}")


def _show_capture(report: OperatorReport, console: Console) -> None:
    """What stands in the way of a captured graph."""
    operators = [o for phase in report.phases.values() for o in phase.operators]
    for severity, words in SEVERITY.items():
        names = list(dict.fromkeys(o.name for o in operators if o.graph == severity))
        if names:
            _say(console, f"graph capture {words}: {_some(names)}")


def _show_conflicts(report: OperatorReport, console: Console) -> None:
    """Where weaker evidence says otherwise, or a vendor's own tests fail."""
    operators = [o for phase in report.phases.values() for o in phase.operators]
    said = list(dict.fromkeys(conflict for o in operators for conflict in o.conflicts))
    for conflict in said[:MOST_CONFLICTS]:
        _say(console, f"[yellow]evidence differs[/]: {conflict}")
    if len(said) > MOST_CONFLICTS:
        _say(console, f"and {len(said) - MOST_CONFLICTS} more such (--json has all)")


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
            _say(console, f"{title}: {text}")
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
            via = f"\n  [dim]via {through}[/]" if (through := _via(o)) else ""
            numbers = (f"{o.calls:,}", _scaled(o.flops), _scaled(o.bytes), _percent(o.share))
            table.add_row(o.name + via, *numbers, "[yellow]composite[/]" if o.apart else _status(o.status))
    if free:
        table.caption = f"and {sum(o.calls for o in free):,} calls of {len(free)} operators that move nothing"
        table.caption_justify = "left"
    return table


def _via(operator: Operator) -> str:
    """What an operator becomes, where that is worth a line: of many parts those that compute."""
    via = operator.via or ""
    if operator.status == "native":  # through a form of its own that is called otherwise
        return "" if via.partition(".")[0] == operator.name.partition(".")[0].rstrip("_") else via
    if operator.status != "composite" or via == EXPLICIT:
        return "" if via == EXPLICIT else via
    if not operator.apart and work_class(operator.name) not in ("product", "attention"):
        return ""
    return computing(via)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more (--json has all)" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


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
