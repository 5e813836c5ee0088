"""The benchmark's report as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from day0.artifacts.benchmark import BenchmarkReport, Cell
from day0.verdict import Verdict

_STYLE = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow", Verdict.SKIPPED: "dim"}


def show(report: BenchmarkReport) -> None:
    """Print the cells, the roofline, what the machine was busy with, and the checks that are not good."""
    console = Console(highlight=False)
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
    table = Table(title="p50 / p90, milliseconds")
    for heading in ("concurrency", "prefix cache", "requests", "TTFT", "TPOT", "ITL", "E2E", "tokens/s", "cache hits"):
        table.add_column(heading, justify="left" if heading == "prefix cache" else "right")
    for cell in cells:
        times = [
            "-" if value is None else f"{value.p50 * 1e3:,.0f} / {value.p90 * 1e3:,.0f}"
            for value in (cell.ttft, cell.tpot, cell.itl, cell.e2e)
        ]
        rate, hits = cell.output_tokens_per_second, cell.prefix_cache_hit_rate
        table.add_row(
            str(cell.concurrency),
            cell.prefix_cache,
            f"{cell.completed}/{cell.requests}",
            *times,
            "-" if rate is None else f"{rate:.1f}",
            "?" if hits is None else f"{hits:.0%}",
        )
    return table
