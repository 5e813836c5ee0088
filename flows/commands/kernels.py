"""`day0 kernels`: kernels for what a target lacks."""

from __future__ import annotations

from pathlib import Path

import click

from flows import output as outputs


@outputs.command()
@click.argument("action", type=click.Choice(["list", "build", "accept", "bench", "export"]))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--target", required=True, metavar="T", help="Name of a file in configs/targets/.")
@click.option(
    "--runtime",
    type=click.Choice(["process", "docker"]),
    help="Where build compiles: with this machine's compilers (default), or with those of an image.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where export writes to."
)
def command(
    action: str, names: tuple[str, ...], target: str, runtime: str | None, output: Path | None
) -> outputs.Answer:
    """Kernels for a target, all or those named: ours, FlagGems' and the hub's.

    list shows them with the verdicts that they have been given on this machine. build compiles them. accept tries
    each in a process of its own and gives its verdict. bench times the accepted ones side by side and beside the
    framework, and marks the one that is used. export writes accepted ones in the layout of the hub's kernels.
    Exit code 3: a kernel of ours could not be tried here, because its device is not here.
    """
    from day0.errors import InputError
    from day0.verdict import exit_code
    from tasks.kernels.actions import act
    from tasks.kernels.render import show_kernels

    if runtime and action != "build":
        raise InputError(f"--runtime is for build; {action} uses this machine's compilers")
    if output and action != "export":
        raise InputError(f"--output is for export; {action} writes nothing but to DAY0_HOME")
    kernels, verdict = act(action, names, target, runtime=runtime or "process", output=output)
    data = {"kernels": [kernel.to_json() for kernel in kernels]}
    return outputs.Answer(data, lambda: show_kernels(kernels, target, action == "bench"), exit_code(verdict))
