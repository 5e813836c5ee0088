"""What the download stage is asked for."""

from __future__ import annotations

from day0.artifacts.base import Settings


class DownloadSettings(Settings):
    """A release, pinned: `pin()` makes these, so that a release that moved has another cache key."""

    source: str
    """As on the command line: `hf:ORG/NAME[@REV]`, `ms:ORG/NAME[@REV]`, `dir:PATH`, `ORG/NAME`."""
    revision: str | None = None
    """The commit that the source's revision is pinned to; None pins it when it is fetched."""
    listing: str | None = None
    """For a folder: digest of its names, sizes and times. Not read by the stage; it is there for the cache key."""
