"""`day0 serve`: start an engine on a model folder and leave it running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows import output
from flows.output import Answer


@output.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--target", required=True, help="A file of configs/targets/, such as cpu.")
@click.option("--engine", help="A file of configs/engines/; by default the target's first.")
@click.option("--runtime", type=click.Choice(["process", "docker"]), help="By default the target's first.")
@click.option("--context", type=click.IntRange(1, 1 << 40), help="Tokens of a sequence; by default up to 4096.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1_000_000), default=4, show_default=True, help="Sequences at once."
)
@click.option("--weight-dtype", help="What the weights are served as, such as float32; by default the model's own.")
def command(
    folder: Path,
    target: str,
    engine: str | None,
    runtime: str | None,
    context: int | None,
    concurrency: int,
    weight_dtype: str | None,
) -> Answer:
    """Start an engine on DIR, a model folder or what `day0 reshard --layout vllm` wrote, and leave it running.

    `day0 stop NAME` ends it.
    """
    import sys

    from rich.console import Console
    from rich.markup import escape

    from day0 import progress
    from day0.errors import InputError
    from day0.target import load_target
    from tasks.service.session import EngineSession

    where = load_target(target)
    chosen = runtime or where.runtimes[0]
    if chosen not in where.runtimes:
        raise InputError(f"target {target} has no runtime {chosen!r}; it has: {', '.join(where.runtimes)}")
    console = Console(file=sys.stderr)
    with (
        console.status("starting") as status,
        progress.listening("serve", lambda p: _tell(console, status, escape(p.what))),
    ):
        spec = _launch(folder, target, engine or where.engines[0], chosen, context, concurrency, weight_dtype)
        with EngineSession("serve", keep=True) as session:
            started = session.start(spec)
    data = {"name": started.name, "endpoint": started.endpoint.url, "ready_seconds": started.ready_seconds}

    def show() -> None:
        print(f"{started.name} serves {started.endpoint.model!r} at {started.endpoint.url}/v1")
        print(f"it answered its first completion {started.ready_seconds:.1f} s after launch")
        print(f"stop it with: day0 stop {started.name}")

    return Answer(data, show)


def _launch(
    folder: Path,
    target: str,
    engine_name: str,
    runtime: Any,
    context: int | None,
    concurrency: int,
    weight_dtype: str | None,
) -> Any:
    """Plan the folder for the target as `adapt` does, and turn the plan into a launch."""
    from day0.errors import CheckFailed
    from tasks.plan.layout import plan_layout
    from tasks.plan.model import read_model
    from tasks.plan.settings import PlanSettings
    from tasks.profile.describe import describe_model
    from tasks.profile.settings import ProfileSettings
    from tasks.service.engine import load_engine
    from tasks.service.environment import prepare
    from tasks.service.launch import attention_kinds, check_readable, launch_spec, ranks_of

    root = folder.resolve()
    config = root / "config.json"  # alone: the tensors of a resharded folder have the engine's names, not the model's
    ranks = ranks_of(root)
    profile = describe_model(config, ProfileSettings(concurrency=concurrency))
    settings = {
        "target": target,
        "context": min(context or 4096, profile.context_length),
        "concurrency": concurrency,
        "weight_dtype": weight_dtype,
        "tp": ranks.tp,
        "pp": ranks.pp,
        "devices": ranks.tp * ranks.pp,
    }
    plan = plan_layout(read_model(config), profile, PlanSettings.model_validate(settings))
    if plan.chosen is None:
        raise CheckFailed(f"{folder} does not fit on target {target}: {plan.reason}")
    if plan.convert_to and weight_dtype is None:
        raise CheckFailed(f"{plan.weight_reason}; write it so first: day0 reshard --weight-dtype {plan.convert_to}")
    prepared = prepare(engine_name, runtime)
    if runtime == "docker":
        check_readable(root, own=False)
    return launch_spec(
        root,
        plan.engine_args,
        engine_name,
        load_engine(engine_name),
        runtime,
        prepared,
        served_name=root.name,
        attention=attention_kinds(root),
        memory_bytes=plan.chosen.per_device.total * plan.chosen.devices,
    )


def _tell(console: Any, status: Any, what: str) -> None:
    """On a terminal one line that changes; elsewhere a line each time that something new is said."""
    if console.is_terminal:
        status.update(what)
    elif what != getattr(_tell, "said", None):
        _tell.said = what  # type: ignore[attr-defined]
        console.print(what)
