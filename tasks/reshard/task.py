"""The reshard stage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from day0.architecture.resemblance import recognise
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.shards import RankShards
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import open_checkpoint
from day0.errors import CheckFailed, InputError
from day0.home import home
from day0.landing import Landing
from day0.stage import HOURS, stage, workspace
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.runners import LOCAL, fan_out_by
from tasks.reshard.settings import ReshardSettings
from tasks.reshard.shards import write_shards


@stage("reshard", version=5, retries=0, timeout=30 * HOURS)
def reshard(snapshot: Snapshot, plan: ParallelPlan, settings: ReshardSettings) -> RankShards:
    """Split the checkpoint into the files that each rank of the engine loads."""
    chosen = plan.chosen
    if chosen is None:
        raise InputError("the plan has no feasible layout, so there is nothing to reshard for")
    checkpoint = open_checkpoint(Path(snapshot.location))  # of a survey: headers alone, enough to plan from
    writes = plan_writes(
        checkpoint,
        recognise(checkpoint.config, checkpoint.tensors).family,
        settings.layout,
        chosen.tp,
        chosen.pp,
        chosen.ep,
        weight_dtype=plan.convert_to,
        part_bytes=settings.part_bytes,
    )
    if [tuple(span) for span in chosen.stages] != list(writes.stages):
        raise InputError(
            f"the plan's pipeline stages are {list(chosen.stages)}, but the engine makes them {list(writes.stages)}"
        )
    expected = {file.name: file.sha256 for file in snapshot.files}
    fan_out = fan_out_by(os.environ.get("DAY0_RUNNER", LOCAL), os.environ.get("DAY0_RUNNER_ADDRESS"))
    # The workspace goes when the stage fails; what a stopped run has verified stays here, for the next attempt.
    with resumable_folder(workspace(), plan_key(writes, checkpoint), home() / "partial") as partial:

        def write(landing: Landing | None) -> RankShards:
            return write_shards(
                writes, checkpoint, partial.root, expected, journal=partial.journal, fan_out=fan_out, landing=landing
            )

        return write(None) if snapshot.complete else _following(Landing.of(snapshot), write)


def _following(landing: Landing, write: Callable[[Landing], RankShards]) -> RankShards:
    """Take each shard as soon as it has landed; once more, if one was damaged and the download fetched it again."""
    try:
        with landing.follow():
            return write(landing)
    except CheckFailed:
        landing.settle()
        return write(landing)
