"""The profile stage."""

from __future__ import annotations

from day0.artifacts.profile import Profile
from day0.artifacts.snapshot import Snapshot
from day0.stage import MINUTES, stage, tree_of
from tasks.profile.describe import describe_model
from tasks.profile.settings import ProfileSettings


@stage("profile", version=1, retries=0, timeout=10 * MINUTES)
def profile(snapshot: Snapshot, settings: ProfileSettings) -> Profile:
    """What the model is and costs, and whether its headers agree with its config."""
    return describe_model(tree_of(snapshot), settings)
