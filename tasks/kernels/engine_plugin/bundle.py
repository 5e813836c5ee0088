"""Writes accepted kernels as a folder for an engine's PYTHONPATH: its package, and the metadata that announces it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from day0.artifacts.kernels import EnginePlugin, GivenKernel
from day0.errors import InputError
from day0.files import write_json
from day0.target_operators import Device
from tasks.kernels.definition import CompiledBackend, KernelDefinition

PACKAGE = "day0_kernels"
#: The plugin's own files, which are copied as they are.
FILES = ("__init__.py", "plugin.py", "counts.py", "operators.py", "places.py")


@dataclass(frozen=True)
class Chosen:
    """A kernel for the engine."""

    definition: KernelDefinition
    backend: str
    library: Path | None
    """The built library of a compiled backend."""
    places: tuple[str, ...]
    """What it stands for there: one or more of what it replaces."""
    elements: int | None = None
    """The most elements of a tensor that it is given; None: any number."""

    def given(self) -> GivenKernel:
        return GivenKernel(name=self.definition.name, backend=self.backend, places=self.places)


def write_plugin(folder: Path, device: Device, kernels: Sequence[Chosen]) -> EnginePlugin:
    """Write the folder for these kernels, which run on `device`.

    The engine may see it under another path, such as a read-only mount: nothing in it is absolute.

    Raises:
        InputError: there are no kernels, one is given twice, or its library is not there.
    """
    if not kernels:
        raise InputError("there are no accepted kernels to give to the engine")
    package = folder / PACKAGE
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(Path(__file__).with_name(name), package / name)
    for kernel in kernels:
        _write_kernel(package, device, kernel)
    _announce(folder)
    return EnginePlugin(kernels=tuple(kernel.given() for kernel in kernels))


def _write_kernel(package: Path, device: Device, kernel: Chosen) -> None:
    """Write one kernel's folder: its files, and what the plugin needs to know of it."""
    definition, backend, library = kernel.definition, kernel.backend, kernel.library
    place = package / definition.name
    if place.exists():
        raise InputError(f"kernel {definition.name} is given twice: choose one backend")
    place.mkdir()
    shutil.copyfile(definition.folder / "reference.py", place / "reference.py")
    spec = definition.backend(backend)
    compiled = isinstance(spec, CompiledBackend)
    if compiled:
        if library is None or not library.is_file():
            raise InputError(f"kernel {definition.name} for {backend} has not been built")
        shutil.copyfile(library, place / library.name)
    else:
        for source in definition.sources(backend):
            shutil.copyfile(source, place / source.name)
    described = {
        "name": definition.name,
        "backend": backend,
        "schema": definition.file.operator,
        "out_schema": definition.out_schema,
        "library": library.name if compiled and library else None,
        "module": None if isinstance(spec, CompiledBackend) else Path(spec.module).name,
        "device": device.name.partition(":")[0],
        "key": device.key,
        "dtypes": list(definition.file.dtypes),
        "places": list(kernel.places),
        "elements": kernel.elements,
        "digest": definition.digest(backend),
    }
    write_json(place / "kernel.json", described)


def _announce(folder: Path) -> None:
    """The metadata by which Python finds the entry point without an installation."""
    metadata = folder / f"{PACKAGE}-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PACKAGE} = {PACKAGE}.plugin:register\n")
