"""The reshard stage."""

from __future__ import annotations

from pathlib import Path

from day0.architecture.family import find_family, resolve_sizes
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.shards import RankShards
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import open_checkpoint
from day0.errors import InputError
from day0.stage import HOURS, stage, workspace
from tasks.reshard.planner import plan_writes
from tasks.reshard.settings import ReshardSettings
from tasks.reshard.shards import write_shards
from tasks.reshard.slicing import stage_layers


@stage("reshard", version=1, retries=0, timeout=6 * HOURS)
def reshard(snapshot: Snapshot, plan: ParallelPlan, settings: ReshardSettings) -> RankShards:
    """Split the checkpoint into the files that each rank of the engine loads."""
    chosen = plan.chosen
    if chosen is None:
        raise InputError("the plan has no feasible layout, so there is nothing to reshard for")
    checkpoint = open_checkpoint(Path(snapshot.location))
    family = find_family(checkpoint.config)
    layers = resolve_sizes(family, checkpoint.config)["layers"]
    spans = stage_layers(layers, chosen.pp)
    if [tuple(span) for span in chosen.stages] != spans:
        raise InputError(f"the plan's pipeline stages are {list(chosen.stages)}, but the engine makes them {spans}")
    writes = plan_writes(
        checkpoint,
        family,
        settings.layout,
        chosen.tp,
        chosen.pp,
        chosen.ep,
        weight_dtype=plan.weight_dtype,
        part_bytes=settings.part_bytes,
    )
    expected = {file.name: file.sha256 for file in snapshot.files}
    return write_shards(writes, checkpoint, workspace(), expected)
