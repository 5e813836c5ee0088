"""`day0 stop`: end engines that `day0 serve` started."""

from __future__ import annotations

import click

from flows import output
from flows.output import Answer


@output.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Every engine that `day0 serve` started.")
def command(name: str | None, everything: bool) -> Answer:
    """Stop the engine NAME. Only engines that day0 started are ever touched."""
    from tasks.service import registry

    if (name is None) != everything:
        raise click.UsageError("give the NAME of an engine, or --all")
    registry.reap()
    # Engines of a run are its own to stop: --all leaves them alone.
    chosen = [r for r in registry.records() if r.keep] if name is None else [registry.find(name)]
    stopped = [registry.stop(record) for record in chosen]

    def show() -> None:
        for engine in stopped:
            print(
                f"stopped {engine.name}"
                if engine.was_running
                else f"{engine.name} had ended already; removed its record"
            )
        if not stopped:
            print("no engine is running")

    return Answer({"stopped": [{"name": e.name, "was_running": e.was_running} for e in stopped]}, show)
