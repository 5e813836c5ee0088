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
from day0.release import Release
from tasks.download.client import COMMIT, HubRelease, fetch_file, look_up, transfer
from tasks.download.listing import is_unsafe
from tasks.download.manifest import Manifest, hub_manifest, read_record, record_path, write_record
from tasks.download.verify import VerifyReport, verify_folder

logger = logging.getLogger("day0.download")

ATTEMPTS = 4  # each continues where the one before broke off; the client itself resumes five times within each
_REFETCHED = ("digest", "size", "missing_shard")


def fetch_hub(source: Release, revision: str | None) -> Snapshot:
    """Fetch `source` at `revision` (None: at the one that its name gives), or take what was fetched before.

    Raises:
        InputError: there is no such repository or revision, it may not be read, or the disk is too small.
        Unavailable: the hub does not answer.
    """
    release = _known(source.name, revision or source.revision) or look_up(source.name, revision or source.revision)
    manifest = hub_manifest(release.hub, release.files)
    folder = _folder(source.name, release.commit)
    if not manifest.files:
        raise InputError(f"{source.name} at {release.commit} holds no file that may be fetched")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with deadline.file_lock(folder.with_name(f"{release.commit}.lock")):
        report = _complete(release, manifest, folder)
    left = [name for name in sorted(release.files) if is_unsafe(name)]
    detail = "code, or a format that can run code when loaded: it was not fetched"
    warnings = tuple(Fault(kind="unsafe_file", file=name, detail=detail) for name in left)
    return Snapshot(
        checks=report.checks,
        files=report.files,
        source=source.source,
        name=source.name,
        revision=release.commit,
        location=str(folder if folder.exists() else _partial(folder)),
        bytes=report.bytes,
        tensors=report.tensors,
        faults=report.faults,
        warnings=(*report.warnings, *warnings),
        digests_from="hub",
    )


def _folder(repository: str, commit: str) -> Path:
    return home() / "models" / repository / commit


def _known(repository: str, revision: str | None) -> HubRelease | None:
    """A commit that was fetched before: what the hub said then holds for ever, so it need not be asked."""
    if not revision or not COMMIT.fullmatch(revision):
        return None
    folder = _folder(repository, revision)
    if not (folder.is_dir() and record_path(folder).is_file()):
        return None
    hub, files = read_record(folder)
    return HubRelease(repository, revision, hub, files)


def _complete(release: HubRelease, manifest: Manifest, folder: Path) -> VerifyReport:
    """Bring `folder` to what the hub says. It appears under its name only when every digest is right."""
    place = folder if folder.exists() else _partial(folder)
    names = sorted(manifest.files)
    if place != folder:
        _transfer(release, names, place)
    report = verify_folder(place, manifest, hash_all=True)
    damaged = [f for f in report.faults if f.kind in _REFETCHED and f.file in manifest.files]
    if damaged:
        for name in dict.fromkeys(fault.file for fault in damaged if fault.file):
            logger.warning("%s is damaged and is fetched again by another way", name)
            fetch_file(release, name, place)
        report = verify_folder(place, manifest, hash_all=True)
    if place != folder and not any(fault.kind in _REFETCHED for fault in report.faults):
        write_record(folder, release.hub, release.files)
        os.replace(place, folder)
    return report


def _transfer(release: HubRelease, names: list[str], place: Path) -> None:
    """Fetch what is missing; a broken connection is continued a few times."""
    for attempt in range(1, ATTEMPTS + 1):
        missing = [name for name in names if not _whole(release, place, name)]
        if not missing:
            break
        _need_space(sum(release.files[name].size or 0 for name in missing), place)
        try:
            transfer(release, missing, place)
        except Unavailable as error:
            logger.warning("attempt %d of %d: %s", attempt, ATTEMPTS, error)
            if attempt == ATTEMPTS:
                raise
            time.sleep(deadline.current().remaining(at_most=0.5 * 2**attempt) or 0)
            deadline.current().check()
    # The client's notes: what they know is in the manifest, and unfinished files are of no use any more.
    shutil.rmtree(place / ".cache", ignore_errors=True)


def _whole(release: HubRelease, place: Path, name: str) -> bool:
    path = place / name
    return path.is_file() and path.stat().st_size == release.files[name].size


def _need_space(needed: int, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    begun = sum(p.stat().st_blocks * 512 for p in place.rglob("*.incomplete"))
    free = shutil.disk_usage(place).free
    if needed - begun > free:
        remedy = f"make room, or set DAY0_HOME to a larger disk than that of {home()}"
        raise InputError(f"{needed - begun:,} bytes are to be fetched, but only {free:,} are free; {remedy}")


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")
