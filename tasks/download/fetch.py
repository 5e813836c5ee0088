"""From the SOURCE of the command line to a checked snapshot."""

from __future__ import annotations

from day0.artifacts.snapshot import Snapshot
from day0.release import Release, parse_source
from tasks.download import client, modelscope
from tasks.download.folder import listing_digest, take_folder
from tasks.download.foreign import COMMIT
from tasks.download.hub import fetch_hub
from tasks.download.settings import DownloadSettings
from tasks.download.source import Hub
from tasks.download.survey import survey_folder, survey_hub

_HUBS: dict[str, Hub] = {"hf": client, "ms": modelscope}


def pin(source: str) -> DownloadSettings:
    """Settings for what `source` is at this moment: the commit of its revision, or the state of its folder.

    Raises:
        InputError: the source is malformed or is not there.
        Unavailable: the hub does not answer.
    """
    release = parse_source(source)
    if release.path:
        return DownloadSettings(source=release.source, listing=listing_digest(release.path))
    given = release.revision or ""
    commit = given if COMMIT.fullmatch(given) else _hub(release).look_up(release.name, release.revision).commit
    return DownloadSettings(source=release.source, revision=commit)


def survey(source: str, settings: DownloadSettings | None = None) -> Snapshot:
    """What can be known of a release within seconds: its small files, checked, and the headers of its weights.

    Of a folder the headers are read, and nothing is hashed.

    Raises:
        InputError: the source is malformed, is not there, or may not be read.
        CheckFailed: a small file comes with another digest than the hub lists.
        Unavailable: the hub does not answer.
    """
    release = parse_source(source)
    if release.path:
        return survey_folder(release, settings.listing if settings else None)
    return survey_hub(_hub(release), release, settings.revision if settings else None)


def fetch(source: str, settings: DownloadSettings | None = None) -> Snapshot:
    """Fetch a release, or take a folder as it is, and check every file. With faults the verdict is `fail`.

    Raises:
        InputError: the source is malformed, is not there, or may not be read.
        Unavailable: the hub does not answer.
    """
    release = parse_source(source)
    if release.path:
        return take_folder(release)
    return fetch_hub(_hub(release), release, settings.revision if settings else None)


def _hub(release: Release) -> Hub:
    return _HUBS[release.kind]
