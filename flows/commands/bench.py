"""`day0 bench`: measure a served model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flows import output

if TYPE_CHECKING:
    from day0.progress import Progress


@output.command()
@click.option("--endpoint", "url", required=True, metavar="URL", help="An OpenAI-compatible server, without /v1.")
@click.option(
    "--model",
    "folder",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the model that it serves: its vocabulary, and what a decode step must read.",
)
@click.option("--served-name", help="The model's name at the server; by default the only one that it lists.")
@click.option("--suite", default="benchmark", show_default=True, help="The loads to run: configs/suites/SUITE.yaml.")
@click.option("--weight-dtype", help="What the weights are served as, such as bfloat16; by default as they are stored.")
@click.option("--seed", type=int, help="Of the random prompts; by default a new one, which is reported.")
@click.option(
    "--records",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write every request with its tokens' times to RECORDS/requests.jsonl.",
)
def command(
    url: str,
    folder: Path,
    served_name: str | None,
    suite: str,
    weight_dtype: str | None,
    seed: int | None,
    records: Path | None,
) -> output.Answer:
    """Measure a served model: TTFT, TPOT, ITL and throughput, cold and warm prefix cache, against the roofline."""
    from day0 import progress
    from day0.architecture.stored import converted
    from day0.endpoint import Endpoint
    from day0.verdict import exit_code
    from tasks.benchmark import render
    from tasks.benchmark.prompts import usable_token_ids
    from tasks.benchmark.roofline import decode_bytes
    from tasks.benchmark.run import run_benchmark
    from tasks.benchmark.settings import load_settings
    from tasks.plan.model import read_model
    from tasks.service.launch import RANKS

    settings = load_settings(suite)
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not a URL; write http://HOST:PORT", param_hint="--endpoint")
    base = url.rstrip("/").removesuffix("/v1")
    # The tensors of a resharded folder have the engine's names, not the model's.
    model = read_model(folder / "config.json" if (folder / RANKS).is_file() else folder)
    structure, stored = model.structure, model.stored
    if weight_dtype:
        stored = converted(stored, structure, weight_dtype)
    endpoint = Endpoint(base, served_name or _served_name(base))
    with progress.listening("bench", _say):
        report = run_benchmark(
            endpoint,
            usable_token_ids(folder, structure.vocab),
            settings,
            work=decode_bytes(structure, stored, structure.config.dtype or "bfloat16", settings.mean_context),
            records=records,
        )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    data = {"verdict": report.verdict, "reason": report.reason, **report.to_json()}
    return output.Answer(data, lambda: render.show(report), exit_code(report.verdict))


def _served_name(base: str) -> str:
    """The name of the one model that a server lists."""
    import httpx

    from day0.errors import InputError, Unavailable

    try:
        answer = httpx.get(f"{base}/v1/models", timeout=30)
        answer.raise_for_status()
        names = [str(entry["id"]) for entry in answer.json()["data"]]
    except httpx.InvalidURL as error:
        raise InputError(f"{base} is not a URL: {error}") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"no model is served at {base}: {error}; start one with `day0 serve`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{base}/v1/models is not the list of an OpenAI-compatible server") from error
    if len(names) != 1:
        raise InputError(f"{base} serves {', '.join(names) or 'no model'}; choose one with --served-name")
    return names[0]


def _say(event: Progress) -> None:
    """Progress on standard error: one line that is overwritten on a terminal, plain lines elsewhere."""
    count = f" {event.done:g}/{event.total:g} {event.unit}" if event.total else ""
    line = f"{event.stage}: {event.what}{count}"
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif event.done in (0, event.total):
        print(line, file=sys.stderr)
