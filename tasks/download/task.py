"""The download stage."""

from __future__ import annotations

from day0.artifacts.snapshot import Snapshot
from day0.stage import HOURS, stage
from tasks.download.fetch import fetch
from tasks.download.settings import DownloadSettings


@stage("download", version=1, retries=1, timeout=24 * HOURS, packages=("huggingface_hub",))
def download(settings: DownloadSettings) -> Snapshot:
    """The release on this machine, pinned, and every byte of it checked."""
    return fetch(settings.source, settings)
