"""The plan as one screen for people."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from day0.artifacts.plan import Layout, ParallelPlan

SHOWN = 5  # rejected layouts; --json has all


def show_plan(plan: ParallelPlan, console: Console) -> None:
    """Print the layouts, what was rejected, and the engine's arguments."""
    console.print(plan_tables(plan))


def plan_tables(plan: ParallelPlan) -> RenderableType:
    parts: list[RenderableType] = []
    for check in plan.checks:
        parts.append(f"[bold]{check.verdict}[/bold] {escape(check.name)}: {escape(check.reason)}")
    if plan.chosen:
        parts.append(_layouts(plan))
    if plan.rejected:
        table = Table(title=f"rejected ({len(plan.rejected)})", title_justify="left", box=None, pad_edge=False)
        table.add_column("tp pp ep dp")
        table.add_column("why", overflow="fold")
        for rejection in plan.rejected[:SHOWN]:
            sizes = f"{rejection.tp} {rejection.pp} {rejection.ep} {rejection.dp}"
            table.add_row(sizes, escape(rejection.reason))
        if len(plan.rejected) > SHOWN:
            table.add_row("", f"… and {len(plan.rejected) - SHOWN} more (--json has them)")
        parts.append(table)
    least = plan.minimum_devices
    parts.append(f"fewest devices: {least or 'no number is enough'}; longest context here: {plan.max_context:,} tokens")
    if plan.engine_args:
        parts.append("engine: " + ", ".join(f"{key}={value}" for key, value in plan.engine_args.items()))
    return Group(*parts)


def _layouts(plan: ParallelPlan) -> Table:
    title = f"{plan.target}: {plan.concurrency} × {plan.context:,} tokens, {plan.weight_dtype}, cache {plan.kv_dtype}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for column in ("tp pp ep dp", "devices", "weights", "cache", "activ.", "overhead", "total", "of GB", "ms/token"):
        table.add_column(column, justify="right", no_wrap=True)
    for layout, style in [(plan.chosen, "bold"), *((layout, "") for layout in plan.alternatives)]:
        if layout:
            table.add_row(*_cells(layout), style=style)
    return table


def _cells(layout: Layout) -> list[str]:
    memory = layout.per_device
    sizes = (memory.weights, memory.kv_cache, memory.activations, memory.overhead, memory.total, memory.capacity)
    speed = f"{layout.seconds_per_token * 1e3:.2f}" if layout.seconds_per_token is not None else "–"
    return [
        f"{layout.tp} {layout.pp} {layout.ep} {layout.dp}",
        str(layout.devices),
        *(f"{amount / 1e9:.2f}" for amount in sizes),
        speed,
    ]
