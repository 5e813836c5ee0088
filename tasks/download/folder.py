"""A release that already lies on this machine: taken where it is, never copied and never changed."""

from __future__ import annotations

import os
from pathlib import Path

from day0.artifacts.snapshot import Snapshot
from day0.files import digest_of
from day0.release import Release
from tasks.download.manifest import recorded
from tasks.download.verify import verify_folder


def take_folder(source: Release) -> Snapshot:
    """The folder as it is now. Its revision is the digest of its file list with every file's SHA-256.

    Raises:
        InputError: it is no folder, or the manifest that it brings along is malformed.
    """
    root = source.path
    assert root is not None
    manifest = recorded(root)
    report = verify_folder(root, manifest, hash_all=True)
    return Snapshot(
        checks=report.checks,
        files=report.files,
        source=source.source,
        name=source.name,
        revision=digest_of([[file.name, file.bytes, file.sha256] for file in report.files]),
        location=str(root),
        bytes=report.bytes,
        tensors=report.tensors,
        faults=report.faults,
        warnings=report.warnings,
        digests_from=report.digests_from,
    )


def listing_digest(root: Path) -> str:
    """A cheap digest that changes when anything in the folder does: names, sizes, times, inodes; nothing is read."""
    rows = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            entry = os.lstat(path) if not os.path.exists(path) else os.stat(path)
            row = [os.fsencode(os.path.relpath(path, root)).hex(), entry.st_size, entry.st_mtime_ns, entry.st_ino]
            rows.append([*row, entry.st_ctime_ns])
    return digest_of(rows)
