"""`day0 plan`: lay a model out over a target's devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows import output
from flows.output import Answer

#: What `--json` shows of the artifact, and no more: scripts rely on it.
KEYS = ("feasible", "minimum_devices", "chosen", "alternatives", "rejected", "max_context", "engine_args")

SIZE = click.IntRange(1, 65_536)


@output.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="A file of configs/targets/, such as cpu or h100.")
@click.option("--devices", type=SIZE, help="How many there are; by default one node of the target.")
@click.option("--device-memory", type=click.IntRange(1, 1 << 50), help="Bytes of each device; by default the target's.")
@click.option("--context", type=click.IntRange(1, 1 << 40), help="Tokens of a sequence; by default as many as fit.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Sequences at once."
)
@click.option("--kv-dtype", help="Of the KV cache; by default that of the weights.")
@click.option("--weight-dtype", help="What the weights are served as; by default what they are stored as.")
@click.option("--tp", type=SIZE, help="Tensor parallel size; checked, not changed.")
@click.option("--pp", type=SIZE, help="Pipeline parallel size; checked, not changed.")
@click.option("--ep", type=SIZE, help="Expert parallel size; checked, not changed.")
def command(path: Path, **options: Any) -> Answer:
    """Lay a model out over a target's devices: what fits, what does not and why.

    PATH is a model folder, or a config.json alone.
    """
    from day0.architecture.structure import structure_of
    from day0.checkpoint import read_config
    from day0.verdict import exit_code
    from tasks.plan.layout import plan_layout
    from tasks.plan.settings import PlanSettings
    from tasks.profile.describe import describe_model
    from tasks.profile.settings import ProfileSettings

    settings = PlanSettings.model_validate(options)
    profile = describe_model(path, ProfileSettings(concurrency=settings.concurrency))
    plan = plan_layout(structure_of(read_config(path), str(path)), profile, settings)
    content: dict[str, Any] = plan.to_json()

    def show() -> None:
        from rich.console import Console

        from tasks.plan.render import show_plan

        show_plan(plan, Console())

    return Answer({key: content[key] for key in KEYS}, show, exit_code(plan.verdict))
