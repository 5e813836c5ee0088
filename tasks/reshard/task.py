"""The reshard stage."""

from __future__ import annotations

from pathlib import Path

from day0.architecture.family import find_family
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.shards import RankShards
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import open_checkpoint
from day0.errors import InputError
from day0.home import home
from day0.stage import HOURS, stage, workspace
from tasks.reshard.partial import plan_key, resumable_folder
from tasks.reshard.planner import plan_writes
from tasks.reshard.settings import ReshardSettings
from tasks.reshard.shards import write_shards


@stage("reshard", version=2, retries=0, timeout=6 * HOURS)
def reshard(snapshot: Snapshot, plan: ParallelPlan, settings: ReshardSettings) -> RankShards:
    """Split the checkpoint into the files that each rank of the engine loads."""
    chosen = plan.chosen
    if chosen is None:
        raise InputError("the plan has no feasible layout, so there is nothing to reshard for")
    checkpoint = open_checkpoint(Path(snapshot.location))
    writes = plan_writes(
        checkpoint,
        find_family(checkpoint.config),
        settings.layout,
        chosen.tp,
        chosen.pp,
        chosen.ep,
        weight_dtype=plan.weight_dtype,
        part_bytes=settings.part_bytes,
    )
    if [tuple(span) for span in chosen.stages] != list(writes.stages):
        raise InputError(
            f"the plan's pipeline stages are {list(chosen.stages)}, but the engine makes them {list(writes.stages)}"
        )
    expected = {file.name: file.sha256 for file in snapshot.files}
    # The workspace goes when the stage fails; what a stopped run has verified stays here, for the next attempt.
    with resumable_folder(workspace(), plan_key(writes, checkpoint), home() / "partial") as partial:
        return write_shards(writes, checkpoint, partial.root, expected, journal=partial.journal)
