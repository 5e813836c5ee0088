"""`day0 kernels`: kernels for what a target lacks."""

from __future__ import annotations

import click

from flows import output


@output.command()
@click.argument("action", type=click.Choice(["list", "build", "accept", "bench"]))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--target", required=True, metavar="T", help="Name of a file in configs/targets/.")
def command(action: str, names: tuple[str, ...], target: str) -> output.Answer:
    """Kernels for a target, all or those named.

    list shows them with the verdicts that they have been given on this machine. build compiles them. accept tries
    each in a process of its own and gives its verdict. bench times the accepted ones beside the framework.
    Exit code 3: a kernel could not be tried here, because its device is not here.
    """
    from day0.verdict import exit_code
    from tasks.kernels.actions import act
    from tasks.kernels.render import show_kernels

    kernels, verdict = act(action, names, target)
    data = {"kernels": [kernel.to_json() for kernel in kernels]}
    return output.Answer(data, lambda: show_kernels(kernels, target, action == "bench"), exit_code(verdict))
