"""Whether another project's package is here in a version that its adapter is written for. Imports no torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet
from pydantic import Field

from day0.artifacts.base import Frozen
from day0.errors import EvidenceMissing
from tasks.kernels.definition import KernelDefinition, PackageBackend
from tasks.kernels.providers import hub

#: The client of the hub of kernels, and the version that `hub_worker.py` and exports are written for.
HUB_CLIENT = ("kernels", "==0.17.2")


class Provider(Frozen):
    """A package as it is here."""

    identity: str
    """What was tried: `flag_gems 5.0.2`, or a repository of the hub with its commit and build."""
    environment: dict[str, str] = Field(default_factory=dict)
    """For processes that load the adapter."""


def missing(spec: PackageBackend, backend: str) -> str:
    """Why an adapter cannot be tried here at all, and the remedy; nothing: it can. Asks no server."""
    name, wanted = HUB_CLIENT if backend == "hub" else (spec.package, spec.requires or "")
    # FlagGems pins versions of numpy, PyYAML and SQLAlchemy that are not day0's; it runs with those.
    without = "--no-deps " if backend == "flaggems" else ""
    remedy = f"pip install {without}'{name}{wanted}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed: {remedy}"
    if not SpecifierSet(wanted).contains(found, prereleases=True):
        return f"{name} {found} is installed, and the adapter is written for {name}{wanted}: {remedy}"
    return ""


def provider(definition: KernelDefinition, backend: str) -> Provider | None:
    """The package behind a backend; None for our own. What comes from the hub is fetched at its pinned commit.

    Raises:
        EvidenceMissing: it is not here; the sentence says why, and the remedy.
        InputError: kernel.yaml names a version of the hub's that is none.
        StageTimeout, Cancelled: the stage's time was up.
    """
    spec = definition.backend(backend)
    if not isinstance(spec, PackageBackend):
        return None
    if why := missing(spec, backend):
        raise EvidenceMissing(why)
    if backend != "hub":
        return Provider(identity=f"{spec.package} {version(spec.package)}")
    build = hub.fetch(spec.package, spec.requires)
    return Provider(identity=build.identity, environment=hub.environment(build))


def identity(definition: KernelDefinition, backend: str) -> str | None:
    """The `identity` of what is here already, without asking a server; None for our own backends.

    Raises:
        EvidenceMissing: nothing is here.
    """
    spec = definition.backend(backend)
    if not isinstance(spec, PackageBackend):
        return None
    if why := missing(spec, backend):
        raise EvidenceMissing(why)
    if backend != "hub":
        return f"{spec.package} {version(spec.package)}"
    return hub.pinned(spec.package, spec.requires).identity
