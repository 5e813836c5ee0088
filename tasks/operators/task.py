"""The stage `operators`."""

from __future__ import annotations

from pathlib import Path

from day0.artifacts.operators import OperatorReport
from day0.artifacts.snapshot import Snapshot
from day0.checkpoint import read_config
from day0.stage import MINUTES, stage
from tasks.operators.scan import scan
from tasks.operators.settings import OperatorSettings


@stage("operators", version=4, retries=0, timeout=30 * MINUTES, packages=("torch", "transformers"))
def operators(snapshot: Snapshot, settings: OperatorSettings) -> OperatorReport:
    """Trace the model on the meta device, look up every operator for the target, and run them where its device is."""
    return scan(read_config(Path(snapshot.location)), settings)
