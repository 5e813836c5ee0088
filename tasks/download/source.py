"""What a hub is to day0: it lists a release, its client fetches it, and each file has an address for plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tasks.download.manifest import Expected


@dataclass(frozen=True)
class HubRelease:
    """A repository at one commit, with what the hub says about each file. `hub` is the hub's address, for people."""

    repository: str
    commit: str
    hub: str
    files: dict[str, Expected]
    by_client: bool = True
    """Whether the hub's own client has a better way to its large files than plain HTTP."""


@dataclass(frozen=True)
class Address:
    """Where one file can be fetched by plain HTTP, by ranges too. A header may hold a token: it is not for logs."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Hub(Protocol):
    """A module with these functions is a hub. tasks/download/direct.py does the rest with `address`.

    All raise InputError where there is no such repository or it may not be read, Unavailable where the hub does not
    answer, and StageTimeout or Cancelled when the stage's time is up; nothing goes on in the background then.
    """

    def look_up(self, repository: str, revision: str | None) -> HubRelease:
        """The commit that a revision (None: the main branch) stands for now, and its files."""

    def transfer(self, release: HubRelease, names: list[str], folder: Path) -> None:
        """Fetch files with the hub's own client into `folder`, continuing what was begun there.

        A file gets its own name in `folder` only when all its bytes are there; until then it is one that ends in
        `.incomplete`. The contents need not be checked. Only called for a release that is `by_client`.
        """

    def address(self, release: HubRelease, name: str) -> Address:
        """Where one file is, at the release's commit."""
