"""Where a release comes from: the SOURCE of the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from day0.errors import InputError

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


@dataclass(frozen=True)
class Release:
    """A release that may be fetched: from the hub (`hf`), from ModelScope (`ms`), or a folder (`dir`)."""

    kind: Literal["hf", "ms", "dir"]
    name: str
    """ORG/NAME on a hub, else the folder's name."""
    revision: str | None = None
    """A branch, tag or commit of a hub; None is its main branch."""
    path: Path | None = None
    """The folder of a `dir:` source, absolute."""

    @property
    def source(self) -> str:
        """As the user may write it again, without the revision."""
        return f"{self.kind}:{self.name}" if self.path is None else f"dir:{self.path}"


def parse_source(text: str) -> Release:
    """The release that `hf:ORG/NAME[@REV]`, `ms:ORG/NAME[@REV]`, `dir:PATH` or a bare `ORG/NAME[@REV]` names.

    Raises:
        InputError: it is none of these; says what would be.
    """
    scheme, colon, rest = text.partition(":")
    if not colon:
        scheme, rest = "hf", text
    if scheme == "dir":
        if not rest:
            raise InputError("dir: needs a path, as in dir:/models/my-model")
        path = Path(rest).expanduser()
        if not path.is_dir():
            raise InputError(f"{path} is not a folder; give the folder that the model's files lie in")
        path = path.resolve()
        return Release("dir", path.name or "model", path=path)
    if scheme not in ("hf", "ms"):
        known = "hf:ORG/NAME[@REV], ms:ORG/NAME[@REV] (ModelScope), dir:PATH or ORG/NAME"
        raise InputError(f"{text!r} has an unknown source {scheme!r}; use {known}")
    name, at, revision = rest.partition("@")
    if not _REPOSITORY.fullmatch(name) or ".." in name or (scheme == "hf" and "--" in name):
        local = f"; for a folder write dir:{text}" if Path(text).expanduser().exists() else ""
        raise InputError(f"{rest!r} does not name a repository; write ORG/NAME or ORG/NAME@REVISION{local}")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputError(f"{revision!r} is not a revision; give a branch, a tag or a commit")
    return Release("hf" if scheme == "hf" else "ms", name, revision=revision or None)
