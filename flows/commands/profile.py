"""`day0 profile`: read a model from its config and tensor headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flows import output
from flows.output import Answer

#: What `--json` shows of the artifact, and no more: scripts rely on it.
KEYS = ("architecture", "parameters", "context_length", "kv_cache", "checkpoint", "differences", "warnings")


@output.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--context", type=click.IntRange(1, 1 << 40), help="Tokens of a sequence; by default the model's longest."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Sequences at once."
)
@click.option("--kv-dtype", default="bfloat16", show_default=True, help="Of the KV cache, such as bfloat16 or fp8.")
@click.option("--index-dtype", help="Of an indexer's keys; by default that of the KV cache.")
@click.option("--page", type=click.IntRange(1, 1 << 20), default=16, show_default=True, help="Tokens of a cache page.")
@click.option("--target", help="A file of configs/targets/ whose roofline is drawn, such as h200.")
@click.option(
    "--library", is_flag=True, help="Count the library's own modules too (transformers on the meta device, apart)."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the profile as a page too.")
def command(path: Path, html: Path | None, **options: Any) -> Answer:
    """Read a model from its config and tensor headers.

    PATH is a model folder, or a config.json alone. No weights are read, and no code of the model's is run.
    """
    from day0.verdict import exit_code
    from tasks.profile.describe import describe_model
    from tasks.profile.settings import ProfileSettings

    profile = describe_model(path, ProfileSettings.model_validate(options))
    content: dict[str, Any] = profile.to_json()
    if html is not None:
        from day0.files import atomic_write
        from tasks.profile.report import render_profile

        name = path.resolve().name if path.is_dir() else path.stem
        with atomic_write(html) as file:
            file.write(render_profile(profile, name).encode())

    def show() -> None:
        from rich.console import Console

        from tasks.profile.render import show_profile

        show_profile(profile, Console())

    return Answer({key: content[key] for key in KEYS}, show, exit_code(profile.verdict))
