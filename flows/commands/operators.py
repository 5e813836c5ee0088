"""`day0 operators`: what a model calls, and whether the target has it."""

from __future__ import annotations

from pathlib import Path

import click

from flows import output


@output.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="T", help="Name of a file in configs/targets/.")
@click.option(
    "--prompt", type=click.IntRange(1, 1 << 20), default=512, show_default=True, help="Tokens of the prefill."
)
@click.option(
    "--context", type=click.IntRange(1, 1 << 20), default=512, show_default=True, help="Tokens in the cache at decode."
)
def command(path: Path, target: str, prompt: int, context: int) -> output.Answer:
    """What the model in PATH (a folder, or a config.json alone) calls, and whether the target has it.

    The model is traced without its weights, on no device at all. Exit code 3: it could not be traced, or for some
    operator it is not known whether the target has it.
    """
    from day0.checkpoint import read_config
    from day0.target import load_target
    from day0.verdict import exit_code
    from tasks.operators.render import show_operators
    from tasks.operators.scan import scan
    from tasks.operators.settings import operator_settings

    settings = operator_settings(target, load_target(target), prompt=prompt, context=context)
    report = scan(read_config(path), settings)
    content = report.to_json()
    data = {key: content[key] for key in ("target", "prompt", "context", "phases", "gaps")}
    data |= {"verdict": report.verdict, "reason": report.reason}
    return output.Answer(data, lambda: show_operators(report), exit_code(report.verdict))
