"""The plan stage."""

from __future__ import annotations

from day0.artifacts.plan import ParallelPlan
from day0.artifacts.profile import Profile
from day0.artifacts.snapshot import Snapshot
from day0.stage import MINUTES, stage, tree_of
from tasks.plan.layout import plan_layout
from tasks.plan.model import read_model
from tasks.plan.settings import PlanSettings


@stage("plan", version=2, retries=0, timeout=10 * MINUTES)
def plan(snapshot: Snapshot, profile: Profile, settings: PlanSettings) -> ParallelPlan:
    """How the model is laid out over the target's devices."""
    return plan_layout(read_model(tree_of(snapshot)), profile, settings)
