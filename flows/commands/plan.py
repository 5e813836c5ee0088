"""`day0 plan`: lay a model out over a target's devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows import output
from flows.output import Answer

#: What `--json` shows of the artifact, and no more: scripts rely on it.
KEYS = (
    "feasible", "minimum_devices", "chosen", "alternatives", "rejected", "max_context", "engine_args", "engines",
    "minimum_layout", "context", "concurrency", "objective", "weight_dtype", "convert_to", "weight_reason", "kv_dtype",
    "placement", "notes", "offload", "disaggregation", "unchecked",
)  # fmt: skip

SIZE = click.IntRange(1, 65_536)


@output.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--target", help="A file of configs/targets/, such as cpu or h100.")
@click.option("--devices", type=SIZE, help="How many there are; by default one node of the target.")
@click.option("--device-memory", type=click.IntRange(1, 1 << 50), help="Bytes of each device; by default the target's.")
@click.option("--context", type=click.IntRange(1, 1 << 40), help="Tokens of a sequence; by default as many as fit.")
@click.option(
    "--output", type=click.IntRange(1, 1 << 40), help="Of them those of an answer: throughput then counts prompts too."
)
@click.option("--concurrency", type=click.IntRange(1, 1_000_000), help="Sequences at once; by default 1.")
@click.option(
    "--tpot",
    type=click.FloatRange(0, min_open=True),
    help="Seconds: layouts that are predicted to take longer for a token are left out.",
)
@click.option("--kv-dtype", help="Of the KV cache; by default that of the weights, or what the checkpoint says.")
@click.option("--index-dtype", help="Of an indexer's keys; by default that of the KV cache.")
@click.option("--weight-dtype", help="What the weights are served as; by default what they are stored as.")
@click.option("--mtp", is_flag=True, default=None, help="Multi-token prediction is used, and needs a cache too.")
@click.option(
    "--objective",
    type=click.Choice(["latency", "throughput", "cost"]),
    help="What layouts are ranked by at the given concurrency: time of a token (default), tokens a second, or the "
    "same for each device.",
)
@click.option("--tp", type=SIZE, help="Tensor parallel size; checked, not changed.")
@click.option("--pp", type=SIZE, help="Pipeline parallel size; checked, not changed.")
@click.option(
    "--ep", type=SIZE, help="Expert parallel size; checked, not changed. More than tp: attention in replicas."
)
@click.option("--dp", type=SIZE, help="Data parallel size: replicas of attention; checked, not changed.")
@click.option("--dcp", type=SIZE, help="Ranks that share the tokens of a cache in decode; checked, not changed.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan as YAML, for review.")
@click.option(
    "--load",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Plan again what such a file says, and say what differs.",
)
def command(path: Path, save: Path | None, load: Path | None, **options: Any) -> Answer:
    """Lay a model out over a target's devices: what fits, what does not and why.

    PATH is a model folder, or a config.json alone.
    """
    from day0.errors import InputError
    from day0.verdict import exit_code
    from tasks.plan.layout import plan_layout
    from tasks.plan.model import Model
    from tasks.plan.oracle import beside, interpreter
    from tasks.plan.review import compare, load_review, save_review, settings_of
    from tasks.plan.settings import PlanSettings
    from tasks.profile.describe import examine_model
    from tasks.profile.settings import ProfileSettings

    review = load_review(load) if load else None
    if review:
        settings = settings_of(review, options)
    elif options["target"] is None:
        raise InputError("give --target, a file of configs/targets/ such as cpu or h100 (or --load, a saved plan)")
    else:
        given = {name: value for name, value in options.items() if value is not None}
        settings = PlanSettings.model_validate({"concurrency": 1, **given})
    found = examine_model(path, ProfileSettings(concurrency=settings.concurrency))
    plan = plan_layout(Model(found.structure, found.stored, found.quantization), found.profile, settings)
    if review:
        plan = plan.model_copy(update={"checks": (*plan.checks, compare(review, plan))})
    if save:
        save_review(plan, save)
    content: dict[str, Any] = plan.to_json()
    shown = {key: content[key] for key in KEYS}
    python = interpreter()
    figure = beside(python, path, plan, experts=bool(found.structure.routing)) if python else None
    if figure:
        shown["aiconfigurator"] = {"seconds_per_token": figure.seconds, "error": figure.error}

    def show() -> None:
        from rich.console import Console

        from tasks.plan.render import show_plan

        console = Console()
        show_plan(plan, console)
        if figure:
            console.print(figure.sentence(plan.chosen), markup=False)

    return Answer(shown, show, exit_code(plan.verdict))
