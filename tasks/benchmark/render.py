"""The benchmark's report as tables for people."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from day0.artifacts.benchmark import BenchmarkReport, Cell, Percentiles
from day0.verdict import Verdict

_STYLE = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow", Verdict.SKIPPED: "dim"}


def show(report: BenchmarkReport) -> None:
    """Print the cells, the roofline, what the machine was busy with, and the checks that are not good."""
    console = Console(highlight=False, soft_wrap=True)
    conditions = report.conditions
    console.print(
        f"{conditions['model']} at {conditions['endpoint']}: {conditions['input_tokens']} tokens in, "
        f"{conditions['output_tokens']} out, closed loop, seed {conditions['seed']}",
        markup=False,
    )
    console.print(_table(report.cells))
    if found := report.roofline:
        console.print(
            f"Decode reads at least {found.bytes_per_step / 1e6:,.1f} MB a token; at the "
            f"{found.bandwidth / 1e9:.1f} GB/s measured here that takes {found.least_seconds_per_token * 1e3:.1f} ms, "
            f"and it took {found.measured_seconds_per_token * 1e3:.1f} ms: {found.share:.0%} of the roofline."
        )
    cores, load = report.machine["usable_cores"], report.machine["load_average_before"][0]
    if load > cores / 2:
        console.print(f"The machine was busy (load {load} on {cores} cores before the start): the times are too long.")
    for check in report.checks:
        if not check.verdict.good:
            console.print(f"{check.verdict}: {check.name}: {check.reason}", style=_STYLE[check.verdict], markup=False)
    console.print(f"{report.verdict}: {report.reason}", style=_STYLE[report.verdict], markup=False)


def _table(cells: tuple[Cell, ...]) -> Table:
    """Fits 80 columns."""
    table = Table(
        title="concurrency × prefix cache; p50/p90", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("load", no_wrap=True)
    for heading in ("done", "TTFT s", "TPOT ms", "ITL ms", "E2E s", "tok/s", "hits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in cells:
        rate, hits = cell.output_tokens_per_second, cell.prefix_cache_hit_rate
        table.add_row(
            f"{cell.concurrency} × {cell.prefix_cache}",
            f"{cell.completed}/{cell.requests}",
            _seconds(cell.ttft),
            _milliseconds(cell.tpot),
            _milliseconds(cell.itl),
            _seconds(cell.e2e),
            "-" if rate is None else f"{rate:.1f}",
            "?" if hits is None else f"{hits:.0%}",
        )
    return table


def _seconds(value: Percentiles | None) -> str:
    return "-" if value is None else f"{value.p50:.3g}/{value.p90:.3g}"


def _milliseconds(value: Percentiles | None) -> str:
    return "-" if value is None else f"{value.p50 * 1e3:.0f}/{value.p90 * 1e3:.0f}"
