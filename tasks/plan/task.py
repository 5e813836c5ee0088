"""The plan stage."""

from __future__ import annotations

from day0.architecture.structure import structure_of
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import read_config
from day0.stage import MINUTES, stage, tree_of
from tasks.plan.layout import plan_layout
from tasks.plan.settings import PlanSettings


@stage("plan", version=1, retries=0, timeout=10 * MINUTES)
def plan(snapshot: Snapshot, profile: Profile, settings: PlanSettings) -> ParallelPlan:
    """How the model is laid out over the target's devices."""
    root = tree_of(snapshot)
    return plan_layout(structure_of(read_config(root), str(root)), profile, settings)
