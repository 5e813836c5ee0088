"""The smoke stage."""

from __future__ import annotations

from pathlib import Path

from day0.artifacts.service import Service
from day0.artifacts.smoke import SmokeReport
from day0.artifacts.snapshot import Snapshot
from day0.endpoint import LiveEngine
from day0.stage import MINUTES, stage
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings


@stage("smoke", version=1, timeout=60 * MINUTES, packages=("torch", "transformers"))
def smoke(snapshot: Snapshot, service: Service, settings: SmokeSettings, engine: LiveEngine) -> SmokeReport:
    """Hold the served model against the original files through transformers."""
    return run_smoke(
        engine.endpoint(service),
        Path(snapshot.location),
        settings,
        model_digest=snapshot.digest,
        engine_dtype=_option(service.launch.command, "--dtype") or "unknown",
        max_model_len=service.max_model_len,
    )


def _option(command: tuple[str, ...], name: str) -> str | None:
    """The value of `--name value` or `--name=value` in a command line."""
    for here, following in zip(command, (*command[1:], None), strict=True):
        if here == name:
            return following
        if here.startswith(f"{name}="):
            return here.removeprefix(f"{name}=")
    return None
