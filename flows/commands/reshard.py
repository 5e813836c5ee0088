"""`day0 reshard`: split a checkpoint for a layout."""

from __future__ import annotations

from pathlib import Path

import click

from flows import output
from flows.output import Answer


@output.command(help="Split the checkpoint in SRC for a layout, into the new folder DST.")
@click.argument("src", type=click.Path(path_type=Path))
@click.argument("dst", type=click.Path(path_type=Path))
@click.option("--layout", type=click.Choice(["hf", "vllm", "deepseek"]), required=True, help="Whose files to write.")
@click.option("--tp", type=click.IntRange(1), required=True, help="Tensor parallel size.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline parallel size.")
@click.option("--ep", type=click.IntRange(1), default=1, show_default=True, help="Expert parallel size.")
@click.option("--weight-dtype", help="What the weights are written as; by default what they are.")
@click.option("--dry-run", is_flag=True, help="Read headers only and write nothing.")
def command(
    src: Path, dst: Path, layout: str, tp: int, pp: int, ep: int, weight_dtype: str | None, dry_run: bool
) -> Answer:
    import time

    from day0.architecture.family import find_family
    from day0.checkpoint import open_checkpoint
    from day0.errors import CheckFailed, InputError
    from day0.verdict import Verdict
    from tasks.reshard.planner import plan_writes
    from tasks.reshard.render import show
    from tasks.reshard.shards import describe, write_shards
    from tasks.reshard.writer import new_folder, refuse_occupied

    start = time.monotonic()
    refuse_occupied(dst)
    if dst.resolve().is_relative_to(src.resolve()):
        raise InputError(f"{dst} lies inside {src}; a checkpoint is not changed, give a folder outside it")
    checkpoint = open_checkpoint(src)
    plan = plan_writes(checkpoint, find_family(checkpoint.config), layout, tp, pp, ep, weight_dtype)
    if dry_run:
        files = describe(plan, checkpoint)
    else:
        with new_folder(dst) as root:
            shards = write_shards(plan, checkpoint, root)
            failed = [check for check in shards.checks if check.verdict is Verdict.FAIL]
            if failed:
                raise CheckFailed(failed[0].reason)
        files = [file.model_dump(mode="json") for file in shards.files]
    answer = {
        "layout": layout,
        "ranks": plan.ranks,
        "bytes_read": plan.bytes_read,
        "bytes_written": sum(file["bytes"] for file in files),
        "files": files,
        "dropped": [dropped.to_json() for dropped in plan.dropped],
        "seconds": time.monotonic() - start,
    }
    return Answer(answer, lambda: show(answer, str(dst), dry_run))
