"""`day0 operators`: what a model calls, and whether the target has it."""

from __future__ import annotations

from pathlib import Path

import click

from flows import output

CONTENT = (
    "target", "model", "source", "prompt", "context", "phases", "gaps", "slow", "apart", "measurement", "reach",
    "first_token", "graph", "news",
)  # fmt: skip


@output.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="T", help="Name of a file in configs/targets/.")
@click.option(
    "--prompt", type=click.IntRange(1, 1 << 20), default=512, show_default=True, help="Tokens of the prefill."
)
@click.option(
    "--context", type=click.IntRange(1, 1 << 20), default=512, show_default=True, help="Tokens in the cache at decode."
)
@click.option("--graph", is_flag=True, help="Export the model's graph too, and look for patterns that are fused.")
@click.option(
    "--measure/--no-measure",
    default=None,
    help="Run the operators on the target's device and compare them with float64. By default where it is here.",
)
@click.option(
    "--own-code",
    is_flag=True,
    help="Run the code that the release ships, in a container without network, instead of the library's. Needs Docker.",
)
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="FILE", help="A checklist: which operators are new since it."
)
@click.option(
    "--checklist", type=click.Path(path_type=Path), metavar="FILE", help="Write a checklist for the next model."
)
def command(
    path: Path,
    target: str,
    prompt: int,
    context: int,
    graph: bool,
    measure: bool | None,
    own_code: bool,
    against: Path | None,
    checklist: Path | None,
) -> output.Answer:
    """What the model in PATH (a folder, or a config.json alone) calls, and whether the target has it.

    The model is traced without its weights, on no device at all, and none of
    its own code is run unless --own-code asks for it. A type that the library does not know is traced as one that
    resembles it, if parameters, layers and work are the same; otherwise the operators are those that the formulas of
    its family need. Where the target's device is here, the operators are run on it. Exit code 3: nothing was traced but
    a likeness or formulas, or for some operator it is not known whether the target has it.
    """
    from day0.checkpoint import read_config
    from day0.target import load_target
    from day0.verdict import exit_code
    from tasks.operators.checklist import news_since, read_checklist, write_checklist
    from tasks.operators.render import show_operators
    from tasks.operators.scan import scan
    from tasks.operators.settings import operator_settings

    settings = operator_settings(
        target, load_target(target), prompt=prompt, context=context, graph=graph, measure=measure
    )
    before = read_checklist(against) if against else None
    report = scan(read_config(path), settings, path if own_code else None)
    if before is not None and report.phases:
        report = report.model_copy(update={"news": news_since(report, before)})
    if checklist is not None:
        write_checklist(checklist, report)
    content = report.to_json()
    data = {key: content[key] for key in CONTENT}
    data |= {"verdict": report.verdict, "reason": report.reason}
    return output.Answer(data, lambda: show_operators(report), exit_code(report.verdict))
