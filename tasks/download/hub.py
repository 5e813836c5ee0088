"""A release from a hub: pinned to a commit, fetched, and every byte compared with what the hub says it is."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

from day0 import deadline
from day0.artifacts.snapshot import Fault, Snapshot
from day0.errors import InputError, Unavailable
from day0.home import home
from day0.landing import arriving, begun_folder, note_failure, partial
from day0.release import Release
from tasks.download.arrivals import hashed_as_they_land, wait_for_followers, whole
from tasks.download.foreign import COMMIT
from tasks.download.listing import is_unsafe
from tasks.download.manifest import Manifest, hub_manifest, read_record, record_path, write_record
from tasks.download.parallel import fetch_again, fetch_files
from tasks.download.source import Hub, HubRelease
from tasks.download.space import need_space
from tasks.download.verify import VerifyReport, verify_folder

logger = logging.getLogger("day0.download")

CLIENT_ATTEMPTS = 2  # the client itself tries more than once within each; after that plain HTTP is tried
_REFETCHED = ("digest", "size", "missing_shard")


def fetch_hub(hub: Hub, source: Release, revision: str | None) -> Snapshot:
    """Fetch `source` at `revision` (None: at the one that its name gives), or take what was fetched before.

    Raises:
        InputError: there is no such repository or revision, it may not be read, or the disk is too small.
        Unavailable: the hub does not answer.
    """
    release = find(hub, source, revision)
    manifest = hub_manifest(release.hub, release.files)
    folder = folder_of(source, release.commit)
    if not manifest.files:
        raise InputError(f"{source.name} at {release.commit} holds no file that may be fetched")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with arriving(folder):
        report = _complete(hub, release, manifest, folder)
    left = [name for name in sorted(release.files) if is_unsafe(name)]
    detail = "code, or a format that can run code when loaded: it was not fetched"
    warnings = tuple(Fault(kind="unsafe_file", file=name, detail=detail) for name in left)
    snapshot = Snapshot(
        checks=report.checks,
        files=report.files,
        source=source.source,
        name=source.name,
        revision=release.commit,
        location=str(folder if folder.exists() else partial(folder)),
        bytes=report.bytes,
        tensors=report.tensors,
        faults=report.faults,
        warnings=(*report.warnings, *warnings),
        digests_from="hub",
    )
    if not snapshot.verdict.good:
        note_failure(folder, f"its download ended with the verdict {snapshot.verdict}: {snapshot.reason}")
    return snapshot


def find(hub: Hub, source: Release, revision: str | None) -> HubRelease:
    """What the hub says of `source` at `revision`, or said when that commit was fetched: it holds for ever."""
    revision = revision or source.revision
    if revision and COMMIT.fullmatch(revision):
        folder = folder_of(source, revision)
        if folder.is_dir() and record_path(folder).is_file():
            where, files = read_record(folder)
            return HubRelease(source.name, revision, where, files)
    return hub.look_up(source.name, revision)


def folder_of(source: Release, commit: str) -> Path:
    """Where a release of a hub lies when it is whole."""
    models = home() / "models"
    return (models if source.kind == "hf" else models / source.kind) / source.name / commit


def _complete(hub: Hub, release: HubRelease, manifest: Manifest, folder: Path) -> VerifyReport:
    """Bring `folder` to what the hub says. It appears under its name only when every digest is right."""
    place = folder if folder.exists() else partial(folder)
    begun = begun_folder(folder)
    names = sorted(manifest.files)
    refused = {} if place == folder else _transfer(hub, release, names, place, folder, begun)
    report = verify_folder(place, manifest, hash_all=True)
    damaged = {f.file for f in report.faults if f.kind in _REFETCHED and f.file in manifest.files} - refused.keys()
    if damaged:
        for name in sorted(filter(None, damaged)):
            if why := fetch_again(hub, release, name, place, begun):
                refused[name] = why
        report = verify_folder(place, manifest, hash_all=True)
    report = _with_refused(report, refused)
    if place != folder and not any(fault.kind in _REFETCHED for fault in report.faults):
        write_record(folder, release.hub, release.files)
        os.replace(place, folder)
    return report


def _transfer(
    hub: Hub, release: HubRelease, names: list[str], place: Path, folder: Path, begun: Path
) -> dict[str, str]:
    """Fetch what is missing. Returns the files that the hub sends damaged, and how."""
    missing = [name for name in names if not whole(release, place, name)]
    refused: dict[str, str] = {}
    if missing:
        need_space(sum(release.files[name].size or 0 for name in missing), place, begun)
        if release.by_client:
            with hashed_as_they_land(release, missing, place, folder):
                _by_client(hub, release, missing, place)
            missing = [name for name in missing if not whole(release, place, name)]
        # The small ones first: they tell early that the release cannot be read.
        missing.sort(key=lambda name: (name.endswith(".safetensors"), name))
        damaged = fetch_files(hub, release, missing, place, begun)
        refused = {name: why for name in damaged if (why := fetch_again(hub, release, name, place, begun))}
    # The client's notes: what they know is in the manifest, and unfinished files are of no use any more.
    shutil.rmtree(place / ".cache", ignore_errors=True)
    wait_for_followers(release, names, place, folder)
    return refused


def _by_client(hub: Hub, release: HubRelease, names: list[str], place: Path) -> None:
    """Let the hub's own client fetch what it can."""
    for attempt in range(1, CLIENT_ATTEMPTS + 1):
        try:
            hub.transfer(release, [name for name in names if not whole(release, place, name)], place)
            return
        except Unavailable as error:
            logger.warning("attempt %d of %d of the hub's client: %s", attempt, CLIENT_ATTEMPTS, error)
            time.sleep(deadline.current().remaining(at_most=0.5 * 2**attempt) or 0)
            deadline.current().check()


def _with_refused(report: VerifyReport, refused: dict[str, str]) -> VerifyReport:
    """A file that only ever came damaged is not there; what is wrong with it is its digest."""
    if not refused:
        return report
    faults = [Fault(kind="digest", file=name, detail=why) for name, why in sorted(refused.items())]
    others = [fault for fault in report.faults if fault.file not in refused]
    return report.model_copy(update={"faults": (*faults, *others)})
