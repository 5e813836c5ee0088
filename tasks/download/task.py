"""The stages that bring a release here: its headers first, then all of it."""

from __future__ import annotations

from day0.artifacts.snapshot import Snapshot
from day0.stage import HOURS, MINUTES, stage
from tasks.download import fetch
from tasks.download.settings import DownloadSettings


@stage("survey", version=1, retries=2, timeout=30 * MINUTES)
def survey(settings: DownloadSettings) -> Snapshot:
    """The headers and the small files of a release, so that it can be planned for while its weights are fetched."""
    return fetch.survey(settings.source, settings)


@stage("download", version=1, retries=1, timeout=24 * HOURS, packages=("huggingface_hub",))
def download(settings: DownloadSettings) -> Snapshot:
    """The release on this machine, pinned, and every byte of it checked."""
    return fetch.fetch(settings.source, settings)
