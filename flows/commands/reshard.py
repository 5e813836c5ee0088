"""`day0 reshard`: split a checkpoint for a layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows import output
from flows.output import Answer

if TYPE_CHECKING:
    from tasks.reshard.writer import FanOut


@output.command(help="Split the checkpoint in SRC for a layout, into the new folder DST.")
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--layout", type=click.Choice(["hf", "vllm", "deepseek"]), required=True, help="Whose files to write.")
@click.option("--tp", type=click.IntRange(1), required=True, help="Tensor parallel size.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline parallel size.")
@click.option("--ep", type=click.IntRange(1), default=1, show_default=True, help="Expert parallel size.")
@click.option("--weight-dtype", help="What weights are written as (bfloat16, int8, fp8, …); by default as they are.")
@click.option(
    "--towers",
    type=click.Choice(["auto", "split", "replicate"]),
    default="auto",
    show_default=True,
    help="Split towers of images and sound over tensor parallel ranks, or give each rank all of them.",
)
@click.option(
    "--runner",
    type=click.Choice(["local", "threads", "dask", "ray"]),
    default="local",
    envvar="DAY0_RUNNER",
    show_default=True,
    help="Who takes the source's shards: this process, or a task runner of Prefect's.",
)
@click.option(
    "--address",
    envvar="DAY0_RUNNER_ADDRESS",
    help="Of a running Dask scheduler or Ray head; without it a cluster on this machine.",
)
@click.option("--hashes/--no-hashes", default=True, help="Take the SHA-256 of all that is read and written.")
@click.option("--dry-run", is_flag=True, help="Read headers only and write nothing.")
def command(
    src: Path,
    dst: Path,
    layout: str,
    tp: int,
    pp: int,
    ep: int,
    weight_dtype: str | None,
    towers: str,
    runner: str,
    address: str | None,
    hashes: bool,
    dry_run: bool,
) -> Answer:
    import time

    from day0.architecture.resemblance import recognise
    from day0.checkpoint import open_checkpoint
    from day0.errors import CheckFailed, InputError
    from day0.verdict import Verdict
    from tasks.download.manifest import recorded
    from tasks.reshard.partial import plan_key, refuse_occupied, resumable_folder
    from tasks.reshard.planner import plan_writes
    from tasks.reshard.reflink import supports_reflink
    from tasks.reshard.render import show
    from tasks.reshard.shards import describe, write_shards

    start = time.monotonic()
    refuse_occupied(dst)
    if dst.resolve().is_relative_to(src.resolve()):
        raise InputError(f"{dst} lies inside {src}; a checkpoint is not changed, give a folder outside it")
    checkpoint = open_checkpoint(src)
    family = recognise(checkpoint.config, checkpoint.tensors).family
    place = next(folder for folder in dst.resolve().parents if folder.is_dir())
    shard = checkpoint.path(next(iter(checkpoint.files)))
    shares = layout == "hf" and not dry_run and supports_reflink(place, shard)
    known = recorded(src) if hashes else None
    expected = {name: file.sha256 for name, file in known.files.items() if file.sha256} if known else None
    plan = plan_writes(checkpoint, family, layout, tp, pp, ep, weight_dtype, towers=towers, cut_to_share=shares)
    checks: list[dict[str, Any]] = []
    if dry_run:
        files = describe(plan, checkpoint)
    else:
        with resumable_folder(dst, plan_key(plan, checkpoint)) as partial:
            shards = write_shards(
                plan,
                checkpoint,
                partial.root,
                expected,
                hashes=hashes,
                journal=partial.journal,
                fan_out=_fan_out(runner, address),
            )
            failed = [check for check in shards.checks if check.verdict is Verdict.FAIL]
            if failed:
                raise CheckFailed(failed[0].reason)
        checks = [check.model_dump(mode="json") for check in shards.checks]
        files = [{**file.model_dump(mode="json"), "sha256": file.sha256 or None} for file in shards.files]
    answer = {
        "layout": layout,
        "ranks": len(plan.ranks),
        "bytes_read": plan.bytes_read,
        "bytes_written": sum(file["bytes"] for file in files),
        "files": files,
        "dropped": [dropped.to_json() for dropped in plan.dropped],
        "checks": checks,
        "seconds": time.monotonic() - start,
    }
    return Answer(answer, lambda: show(answer, str(dst), dry_run))


def _fan_out(runner: str, address: str | None) -> FanOut | None:
    """Who takes shards, if not this process; a server of Prefect's is started for it where there is none."""
    from tasks.reshard.runners import LOCAL, fan_out_by

    if runner != LOCAL:
        from flows.orchestrator import use_server

        use_server()
    return fan_out_by(runner, address)
