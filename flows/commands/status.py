"""`day0 status`: what works where."""

from __future__ import annotations

from flows.output import Answer, command


@command(name="status")
def status() -> Answer:
    """What works where: the newest run of every model on every target."""
    from flows.report import adaptations

    found = adaptations()

    def show() -> None:
        from rich.console import Console
        from rich.table import Table

        if not found:
            print("nothing was adapted yet; begin with `day0 adapt SOURCE`")
            return
        table = Table(box=None, pad_edge=False)
        for column in ("model", "revision", "target", "rung", "not passed", "run", "updated"):
            table.add_column(column, overflow="fold")
        for row in found:
            bad = [
                f"{name}: {verdict}" for name, verdict in row["stages"].items() if verdict not in ("pass", "skipped")
            ]
            cells = (row["model"], row["revision"][:12], row["target"], row["rung"], ", ".join(bad) or "-", row["run"])
            table.add_row(*cells, row["updated"][:16])
        Console(highlight=False).print(table)

    return Answer({"adaptations": found}, show)


command = status
