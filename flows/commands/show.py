"""`day0 show`: the whole record of a run."""

from __future__ import annotations

import click

from flows.output import Answer, command


@command(name="show")
@click.argument("run")
def show_run(run: str) -> Answer:
    """The whole record of RUN: its stages, their artifacts, inputs, settings, versions and logs."""
    from flows.report import whole_record

    record = whole_record(run)

    def show() -> None:
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False)
        console.print(f"[bold]{record['run']}[/]  {record['source']} @ {record['revision'][:12]} on {record['target']}")
        console.print(f"verdict {record['verdict']}, rung {record['rung']}, begun {record['started']}")
        table = Table(box=None, pad_edge=False)
        for column in ("stage", "verdict", "seconds", "artifact", "made from", "reason"):
            table.add_column(column, overflow="fold")
        for stage in record["stages"]:
            inputs = ", ".join(f"{name} {digest[:8]}" for name, digest in stage.get("inputs", {}).items())
            seconds = "from the store" if stage["cached"] else f"{stage['seconds']:.1f}"
            artifact = (stage["artifact"] or "")[:12]
            table.add_row(stage["name"], stage["verdict"], seconds, artifact, inputs, stage["reason"])
        console.print(table)
        for label in ("recipe", "error"):
            if record[label]:
                console.print(f"{label}  {record[label]}", markup=False, soft_wrap=True)

    return Answer(record, show)


command = show_run
