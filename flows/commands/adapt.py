"""`day0 adapt`: bring a release up on a target."""

from __future__ import annotations

from typing import Any

import click

from flows.output import Answer, command


def answer(source: str, **options: Any) -> Answer:
    """Run `adapt` on the orchestrator and show what it came to."""
    from flows.orchestrator import use_server

    use_server()
    from flows.adapt import bring_up

    report = bring_up(source, **options)

    def show() -> None:
        from rich.console import Console

        console = Console(highlight=False)
        console.print(f"\n[bold]{report.release['source']}[/] on {report.target}: rung [bold]{report.rung}[/]", end="")
        console.print(f" ({report.next_rung})", markup=False)
        console.print(f"run     {report.run}", markup=False)
        for sentence in report.follow_up:
            console.print(f"follow-up  {sentence}", markup=False, soft_wrap=True)
        if report.recipe:
            console.print(f"recipe  {report.recipe}", markup=False, soft_wrap=True)

    return Answer(report.to_json(), show, report.exit_code)


@command(name="adapt")
@click.argument("source")
@click.option("--target", default="cpu", show_default=True, help="Name of a file in configs/targets/.")
@click.option("--engine", help="Name of a file in configs/engines/; by default the target's own.")
@click.option("--runtime", type=click.Choice(["process", "docker"]), default="process", show_default=True)
@click.option("--until", metavar="STAGE", help="Stop after this stage.")
@click.option(
    "--kernels",
    "kernel_use",
    type=click.Choice(["gaps", "accepted"]),
    default="gaps",
    show_default=True,
    help="Kernels that the engine is given: those for what the target lacks, or all that are accepted.",
)
@click.option("--fresh", is_flag=True, help="Make every stage again, whatever is in the store.")
def adapt_command(source: str, **options: Any) -> Answer:
    """Bring the release SOURCE up on a target: every stage in order, each recorded.

    SOURCE is hf:ORG/NAME[@REV] or a bare ORG/NAME (the hub at HF_ENDPOINT), ms:ORG/NAME[@REV] (ModelScope), or
    dir:PATH.
    """
    return answer(source, **options)


command = adapt_command
