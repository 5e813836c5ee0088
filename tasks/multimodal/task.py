"""The stage `multimodal`."""

from __future__ import annotations

from pathlib import Path

from day0.artifacts.multimodal import MultimodalReport
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import open_checkpoint
from day0.stage import MINUTES, stage
from tasks.multimodal.settings import MultimodalSettings
from tasks.multimodal.vision import judge_vision


@stage("multimodal", version=1, retries=0, timeout=5 * MINUTES)
def multimodal(snapshot: Snapshot, settings: MultimodalSettings) -> MultimodalReport:
    """Say whether the model sees."""
    checkpoint = open_checkpoint(Path(snapshot.location))
    return judge_vision(checkpoint.config, checkpoint.tensors)
