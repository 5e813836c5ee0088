"""`day0 rerun`: continue a run, or repeat it from a stage on."""

from __future__ import annotations

import click

from flows.output import Answer, command


@command(name="rerun")
@click.argument("run")
@click.option("--from", "stage", metavar="STAGE", help="Make this stage and those after it again.")
def rerun(run: str, stage: str | None) -> Answer:
    """Continue RUN: finished stages are reused, failed and unfinished ones run again."""
    from day0.ledger import Ledger
    from flows.commands.adapt import answer

    request = dict(Ledger().run(run).request)
    return answer(request.pop("source"), **request, run_id=run, refresh_from=stage)


command = rerun
