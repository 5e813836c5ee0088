"""Kernels from the hub, pinned: the commit that a version had when it was first fetched is the one used from then on.

`DAY0_HOME/kernels/hub/` holds a record for each repository and version. `LOCAL_KERNELS` (`REPOSITORY=FOLDER:…`, the
hub client's own variable) puts a folder in a repository's place. Processes that load an adapter are given the fetched
folder by the same variable, so that they ask no server and load nothing but what was pinned.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from pydantic import ValidationError

from day0 import home, process
from day0.artifacts.base import Frozen
from day0.errors import EvidenceMissing, InputError
from day0.files import folder_digest, write_json

#: Repositories whose publisher the hub does not call trusted and that may be run all the same, separated by commas.
TRUSTED = "DAY0_TRUSTED_KERNELS"
_REVISION = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"\d{1,4}")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


class Build(Frozen):
    """A build of a repository's kernel for this machine."""

    repository: str
    commit: str | None
    """None: of a local folder."""
    variant: str
    """The build's folder, such as torch213-cxx11-cpu-x86_64-linux."""
    folder: str
    """The repository's folder, with `build/` in it."""
    digest: str
    """Of the build's files; of a local folder, of all builds."""

    @property
    def identity(self) -> str:
        where = f"at {self.commit}" if self.commit else "in a local folder"
        return f"{self.repository} {where}, files {self.digest[:16]}"


class Request(Frozen):
    """What hub_worker.py is asked."""

    repository: str
    version: int | None
    revision: str | None
    folder: str | None
    """A local folder in the repository's place."""
    trusted: tuple[str, ...]


class Answer(Frozen):
    commit: str | None = None
    variant: str = ""
    folder: str = ""
    fault: str = ""


def fetch(repository: str, requires: str | None) -> Build:
    """The pinned build, fetched unless it is here already.

    Raises:
        EvidenceMissing: it cannot be had, has no build for this machine, or is not what was pinned.
        InputError: the repository or version is none.
        StageTimeout, Cancelled: the stage's time was up.
    """
    local, known = _local(repository), _known(repository, requires)
    if local is None and known is not None and folder_digest(_variant(known)) == known.digest:
        return known
    answer = _ask(_request(repository, requires, known, local))
    if answer.fault:
        raise EvidenceMissing(f"the hub's {repository} cannot be tried: {answer.fault}")
    build = Build(repository=repository, commit=answer.commit, variant=answer.variant, folder=answer.folder, digest="")
    if local is not None:
        return build.model_copy(update={"digest": folder_digest(Path(local, "build"))})
    build = build.model_copy(update={"digest": folder_digest(_variant(build))})
    if known is not None and build.variant == known.variant and build.digest != known.digest:
        raise EvidenceMissing(
            f"the hub's {repository} at {known.commit} has other files in {build.variant} than when it was pinned; "
            f"if that is meant, remove {_record(repository, requires)}"
        )
    write_json(_record(repository, requires), build.to_json())
    return build


def pinned(repository: str, requires: str | None) -> Build:
    """The build that has been fetched before, or that lies in a local folder.

    Raises:
        EvidenceMissing: there is none.
    """
    local = _local(repository)
    if local is not None:
        digest = folder_digest(Path(local, "build"))
        return Build(repository=repository, commit=None, variant="", folder=local, digest=digest)
    known = _known(repository, requires)
    if known is None:
        raise EvidenceMissing("not accepted yet: day0 kernels accept tries it")
    return known


def environment(build: Build) -> dict[str, str]:
    """What makes the hub's client take this build and ask no server."""
    others = [entry for entry in _locals() if not entry.startswith(f"{build.repository}=")]
    return {"LOCAL_KERNELS": ":".join([f"{build.repository}={build.folder}", *others]), "HF_HUB_OFFLINE": "1"}


def _request(repository: str, requires: str | None, known: Build | None, local: str | None) -> Request:
    wanted = requires or ""
    if not _REPOSITORY.fullmatch(repository):
        raise InputError(f"{repository!r} is no repository of the hub; write it as kernels-community/activation")
    if not _REVISION.fullmatch(wanted) and not _VERSION.fullmatch(wanted):
        raise InputError(
            f"{repository}: requires: {requires!r} is neither a version such as 1 nor a commit of 40 hexadecimal digits"
        )
    revision = known.commit if known is not None else wanted if _REVISION.fullmatch(wanted) else None
    return Request(
        repository=repository,
        version=None if revision else int(wanted),
        revision=revision,
        folder=local,
        trusted=tuple(name.strip() for name in os.environ.get(TRUSTED, "").split(",") if name.strip()),
    )


def _ask(asked: Request) -> Answer:
    with tempfile.TemporaryDirectory(prefix="day0-hub-") as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        write_json(request, asked.to_json())
        command = [sys.executable, "-m", "tasks.kernels.providers.hub_worker", str(request), str(answer)]
        # With telemetry off, kernels 0.17.2 sends a user agent that ends in a space, which its HTTP client refuses.
        environment = {"HF_HUB_USER_AGENT_ORIGIN": "day0"} | os.environ
        try:
            process.run(command, cwd=home.PROJECT, env=environment)
            return Answer.model_validate_json(answer.read_bytes())
        except (process.ProcessFailed, OSError, ValidationError) as error:
            return Answer(fault=f"the hub's client ended without an answer: {error}")


def _record(repository: str, requires: str | None) -> Path:
    return home.home() / "kernels" / "hub" / f"{repository.replace('/', '--')}@{requires}.json"


def _known(repository: str, requires: str | None) -> Build | None:
    try:
        return Build.model_validate_json(_record(repository, requires).read_bytes())
    except (OSError, ValidationError):
        return None


def _locals() -> list[str]:
    return [entry for entry in os.environ.get("LOCAL_KERNELS", "").split(":") if entry]


def _local(repository: str) -> str | None:
    named = dict(entry.split("=", 1) for entry in _locals() if "=" in entry)
    return named.get(repository)


def _variant(build: Build) -> Path:
    return Path(build.folder, "build", build.variant)
