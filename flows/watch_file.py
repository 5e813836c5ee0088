"""The watch file: what `day0 watch` looks at, and on which targets it brings up what it finds."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, StringConstraints, model_validator

from day0.artifacts.base import Frozen
from day0.artifacts.service import Runtime
from day0.config import load_config
from day0.errors import InputError
from day0.home import configs
from day0.target import load_target

Targets = Annotated[tuple[str, ...], Field(min_length=1)]
Organisation = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
Endpoint = Annotated[str, StringConstraints(pattern=r"^https?://[^/\s]+(/[^\s?#]*)?$")]


class _Place(Frozen):
    """Where releases appear. A name is a repository's without its organisation, or a sub-folder's."""

    include: tuple[str, ...] = ("*",)
    """Shell patterns, case matters; a release whose name matches one of them is taken …"""
    exclude: tuple[str, ...] = ()
    """… unless its name matches one of these."""
    targets: Targets | None = None
    """In the place of the file's own."""

    def wants(self, name: str) -> bool:
        return any(fnmatchcase(name, p) for p in self.include) and not any(fnmatchcase(name, p) for p in self.exclude)


class WatchedOrganisation(_Place):
    """An author on a hub."""

    name: Organisation
    endpoint: Endpoint | None = None
    """Another hub than that of HF_ENDPOINT."""


class WatchedFolder(_Place):
    """A folder of which every sub-folder is a release."""

    path: Path


class WatchFile(Frozen):
    """A watch file."""

    targets: Targets = ("cpu",)
    runtime: Runtime = "process"
    until: str | None = None
    """The last stage to run; null is the whole path."""
    quiet_seconds: NonNegativeFloat = 5.0
    """A release is taken once nothing in it has changed for so long."""
    max_age_days: PositiveFloat | None = 30.0
    """Repositories that have not changed for longer are no new releases; null takes all. Not for folders."""
    max_runs: PositiveInt = 5
    """Most adaptations that one pass starts; the others wait for the next."""
    organisations: tuple[WatchedOrganisation, ...] = ()
    folders: tuple[WatchedFolder, ...] = ()

    @model_validator(mode="after")
    def _not_empty(self) -> WatchFile:
        if not self.organisations and not self.folders:
            raise ValueError("nothing is watched; name at least one of `organisations` and `folders`")
        return self


def default_watch_file() -> Path:
    """The watch file where none is named."""
    return configs() / "watch" / "default.yaml"


def read_watch_file(path: Path | None) -> WatchFile:
    """The watch file at `path`, or the default one. Relative folders are relative to the file.

    Raises:
        InputError: there is none, or it is malformed (names the key), or it names an unknown target.
    """
    path = path or default_watch_file()
    if not path.is_file():
        example = default_watch_file().with_name("example.yaml")
        raise InputError(f"there is no watch file {path}; copy {example} there, or name one with --config")
    file = load_config(path, WatchFile)
    named = [*file.targets, *(target for p in (*file.organisations, *file.folders) for target in p.targets or ())]
    for target in dict.fromkeys(named):
        if file.runtime not in (runtimes := load_target(target).runtimes):
            raise InputError(f"{path}: target {target} has no runtime {file.runtime!r}; it has: {', '.join(runtimes)}")
    base = path.resolve().parent
    folders = [f.model_copy(update={"path": base / f.path.expanduser()}) for f in file.folders]
    return file.model_copy(update={"folders": tuple(folders)})
