"""`day0 smoke`."""

from __future__ import annotations

from pathlib import Path

import click

from flows import output


@output.command(help="Compare a served model with the reference: log-probabilities, template, streaming, text.")
@click.option(
    "--endpoint", "url", required=True, metavar="URL", help="An OpenAI-compatible server, with or without /v1."
)
@click.option(
    "--model", "folder", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The original model folder.",
)  # fmt: skip
@click.option("--suite", default="smoke", show_default=True, help="A file of configs/suites/.")
@click.option(
    "--engine-dtype", default="unknown", type=click.Choice(["unknown", "bfloat16", "float16", "float32"]),
    help="What the engine computes in; at float32 it is held to a limit of its own.",
)  # fmt: skip
def command(url: str, folder: Path, suite: str, engine_dtype: str) -> output.Answer:
    import sys

    from day0 import progress
    from day0.endpoint import Endpoint
    from day0.verdict import exit_code
    from tasks.smoke.engine import served_model
    from tasks.smoke.render import show
    from tasks.smoke.run import run_smoke
    from tasks.smoke.settings import load_settings

    settings = load_settings(suite)
    url = url.rstrip("/").removesuffix("/v1")
    model, length = served_model(url)
    with progress.listening("smoke", lambda event: print(f"smoke: {event.what}", file=sys.stderr)):
        report = run_smoke(
            Endpoint(url, model), folder.resolve(), settings, engine_dtype=engine_dtype, max_model_len=length
        )
    data = {"verdict": report.verdict, "reason": report.reason, **report.to_json()}
    return output.Answer(data, lambda: show(report), exit_code(report.verdict))
