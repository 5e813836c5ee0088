"""`day0 kernels`: kernels for what a target lacks."""

from __future__ import annotations

import click

from flows import output


@output.command()
@click.argument("action", type=click.Choice(["list"]))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--target", required=True, metavar="T", help="Name of a file in configs/targets/.")
def command(action: str, names: tuple[str, ...], target: str) -> output.Answer:
    """The kernels that day0 can provide for a target: `list`, all or those named."""
    from day0.errors import InputError
    from day0.target import load_target
    from tasks.kernels.gaps import provided

    load_target(target)
    kernels = provided(target)
    if unknown := [name for name in names if name not in {kernel.name for kernel in kernels}]:
        raise InputError(f"there is no kernel named {unknown[0]!r} for {target}; `day0 kernels list` names all")
    chosen = [kernel.to_json() for kernel in kernels if not names or kernel.name in names]

    def show() -> None:
        click.echo("\n".join(kernel["name"] for kernel in chosen) or f"no kernels are provided for {target}")

    return output.Answer({"kernels": chosen}, show)
