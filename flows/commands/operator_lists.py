"""`day0 operator-lists`: the vendors' lists of operators that day0 keeps, and making one anew."""

from __future__ import annotations

from datetime import datetime

import click

from flows import output


@output.command()
@click.argument("action", type=click.Choice(["list", "refresh"]), default="list")
@click.argument("name", required=False)
@click.option("--from", "origin", metavar="FILE_OR_URL", help="The list's file in its repository, as it is now.")
@click.option("--commit", metavar="ID", help="Its commit or release, where FILE_OR_URL does not name the commit.")
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="The date of that commit.")
@click.option("--force", is_flag=True, help="Take the file though it lacks many operators that the list has now.")
def command(
    action: str, name: str | None, origin: str | None, commit: str | None, date: datetime | None, force: bool
) -> output.Answer:
    """The lists of operators by which day0 tells what a target has, with their sources.

    `refresh NAME --from FILE_OR_URL` makes one anew from the file that it was made from, and prints what was added,
    removed and changed. A file that does not parse changes nothing, nor does one that lacks over a tenth of what the
    list has.
    """
    if action == "refresh":
        if not name or not origin:
            raise click.UsageError("refresh needs the NAME of a list and --from FILE_OR_URL")
        return _refreshed(name, origin, commit, date, force)
    if origin or commit or date or force:
        raise click.UsageError("--from, --commit, --date and --force are of refresh")
    return _listed(name)


def _listed(name: str | None) -> output.Answer:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from tasks.operators.lists.model import list_names, load_list

    lists = {one: load_list(one) for one in ([name] if name else list_names())}

    def show() -> None:
        table = Table(box=box.SIMPLE, pad_edge=False)
        for column in ("list", "operators", "what", "source"):
            table.add_column(column, overflow="fold", justify="right" if column == "operators" else "left")
        for one, content in lists.items():
            source = f"{content.source.describe()}; {content.source.licence}, retrieved {content.source.retrieved}"
            table.add_row(one, f"{len(content.operators):,}", content.what, source)
        Console().print(table)

    rows = [
        {
            "name": one,
            "what": content.what,
            "role": content.role,
            "operators": len(content.operators),
            "source": content.source.to_json(),
        }
        for one, content in lists.items()
    ]
    return output.Answer({"lists": rows}, show)


def _refreshed(name: str, origin: str, commit: str | None, date: datetime | None, force: bool) -> output.Answer:
    from tasks.operators.lists.refresh import refresh

    done = refresh(name, origin, commit=commit, date=date.date() if date else None, force=force)

    def show() -> None:
        click.echo(f"{name}: {len(done.after.operators):,} operators, from {done.after.source.describe()}")
        if not done.after.source.commit:
            click.echo("its commit is not known: give --commit, or a URL that names it")
        for sign, names in (("+", done.added), ("-", done.removed), ("~", done.changed)):
            for one in names:
                click.echo(f"{sign} {one}")
        if not (done.added or done.removed or done.changed):
            click.echo("no operator was added, removed or changed")

    data = {
        "name": name,
        "operators": len(done.after.operators),
        "source": done.after.source.to_json(),
        "added": list(done.added),
        "removed": list(done.removed),
        "changed": list(done.changed),
    }
    return output.Answer(data, show)
