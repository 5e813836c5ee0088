"""The plan as one screen for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from day0.artifacts.plan import Disaggregation, Layout, ParallelPlan

SHOWN = 5  # rejected layouts; --json has all


def show_plan(plan: ParallelPlan, console: Console) -> None:
    """Print the layouts, what was rejected, and the engines' arguments."""
    console.print(plan_tables(plan))


def plan_tables(plan: ParallelPlan) -> RenderableType:
    """Checks, layouts, placement, rejections, and what the engines are told."""
    return Group(*_parts(plan))


def _parts(plan: ParallelPlan) -> Iterator[RenderableType]:
    for check in plan.checks:
        yield f"[bold]{check.verdict}[/bold] {escape(check.name)}: {escape(check.reason)}"
    if plan.chosen:
        yield _layouts(plan)
        yield from _step(plan.chosen)
        yield _placement(plan)
    if plan.rejected:
        yield _rejected(plan)
    for note in plan.notes:
        yield f"note: {escape(note)}"
    if plan.offload:
        yield f"offload: {escape(plan.offload.reason)}"
    if plan.disaggregation:
        yield _two_pools(plan.disaggregation)
    least = str(plan.minimum_devices) if plan.minimum_devices else "no number is enough"
    if plan.minimum_layout:
        least += f" ({', '.join(f'{name} {size}' for name, size in plan.minimum_layout.items() if size > 1) or 'tp 1'})"
    yield f"fewest devices: {least}; longest context here: {plan.max_context:,} tokens"
    for engine, arguments in plan.engines.items():
        yield f"[bold]{engine}[/bold] {escape(' '.join(arguments))}"
    if plan.unchecked:
        yield f"not checked, as the target's file does not tell: {escape(', '.join(plan.unchecked))}"


def _layouts(plan: ParallelPlan) -> Table:
    room = f"{plan.chosen.per_device.capacity / 1e9:.1f} GB" if plan.chosen else ""
    title = (
        f"{plan.target}: {plan.concurrency} × {plan.context:,} tokens, {plan.weight_dtype}, cache {plan.kv_dtype}; GB "
        f"of {room} a device; by {plan.objective}"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    columns = ("tp pp ep dp dcp", "dev", "weights", "cache", "activ", "over", "total", "ms/tok", "tok/s")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for layout, style in [(plan.chosen, "bold"), *((layout, "") for layout in plan.alternatives)]:
        if layout:
            table.add_row(*_cells(layout), style=style)
    return table


def _cells(layout: Layout) -> list[str]:
    memory = layout.per_device
    sizes = (memory.weights, memory.kv_cache, memory.activations, memory.overhead, memory.total)
    speed = f"{layout.seconds_per_token * 1e3:.2f}" if layout.seconds_per_token is not None else "–"
    rate = f"{layout.tokens_per_second:,.0f}" if layout.tokens_per_second is not None else "–"
    return [
        f"{layout.tp} {layout.pp} {layout.ep} {layout.dp} {layout.dcp}",
        str(layout.devices),
        *(f"{amount / 1e9:.2f}" for amount in sizes),
        speed,
        rate,
    ]


def _step(layout: Layout) -> Iterator[str]:
    """What the step's time consists of, most first, and what reuse of memory saves."""
    if layout.terms:
        terms = sorted(layout.terms.items(), key=lambda term: -term[1])
        yield "a step in ms: " + ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in terms if seconds > 5e-6)
    if layout.prefill_seconds is not None:
        yield f"a prompt as long as the context, alone: {layout.prefill_seconds:.2f} s"
    apart = layout.per_device.activations_without_reuse
    if apart is not None:
        reused = layout.per_device.activations
        yield f"activations: {reused / 1e9:.2f} GB with memory used again, {apart / 1e9:.2f} without"


def _two_pools(found: Disaggregation) -> str:
    """Prefill and decode by themselves, in a sentence."""
    pools = [
        f"{name} {pool.workers} x (tp {pool.tp} pp {pool.pp} ep {pool.ep} dp {pool.dp})"
        for name, pool in (("prefill", found.prefill), ("decode", found.decode))
    ]
    return (
        f"as two pools on {found.devices} devices: {', '.join(pools)}: {found.tokens_per_second:,.0f} tokens/s, first "
        f"token after {found.first_token_seconds:.2f} s, then one in {found.seconds_per_token * 1e3:.2f} ms"
    )


def _placement(plan: ParallelPlan) -> Table:
    table = Table(title="placed by themselves", title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    for column in ("what", "stage", "ranks", "GB", "how"):
        table.add_column(column, overflow="fold")
    for placed in plan.placement:
        table.add_row(placed.what, str(placed.stage), placed.ranks, f"{placed.bytes / 1e9:.2f}", escape(placed.how))
    return table


def _rejected(plan: ParallelPlan) -> Table:
    table = Table(title=f"rejected ({len(plan.rejected)})", title_justify="left", box=None, pad_edge=False)
    table.add_column("tp pp ep dp")
    table.add_column("why", overflow="fold")
    for rejection in plan.rejected[:SHOWN]:
        sizes = f"{rejection.tp} {rejection.pp} {rejection.ep} {rejection.dp}"
        first, *more = rejection.reason.split("; ")
        table.add_row(sizes, escape(first) + (f" (and {len(more)} more reasons)" if more else ""))
    if len(plan.rejected) > SHOWN:
        table.add_row("", f"… and {len(plan.rejected) - SHOWN} more (--json has them)")
    return table
