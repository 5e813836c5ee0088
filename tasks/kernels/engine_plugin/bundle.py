"""Writes accepted kernels as a folder for an engine's PYTHONPATH: its package, and the metadata that announces it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from day0.artifacts.base import Frozen
from day0.errors import InputError
from day0.files import write_json
from tasks.kernels.definition import CompiledBackend, KernelDefinition

PACKAGE = "day0_kernels"
USES = "DAY0_KERNEL_USES"

#: The device that a backend's kernels run on, by torch's name, and the dispatch key that they are registered for.
DEVICES = {"cpu": ("cpu", "CPU"), "cuda": ("cuda", "CUDA"), "triton": ("cuda", "CUDA")}

#: Engine operators that the plugin has an adapter for: the IR's, whose providers the engine ranks, and layers.
IR_OPERATORS = ("rms_norm", "fused_add_rms_norm")


class EnginePlugin(Frozen):
    """What an engine is given for the kernels in a folder."""

    folder: str
    arguments: tuple[str, ...]
    """Further arguments of its command line."""
    env: dict[str, str]

    @property
    def uses(self) -> Path:
        """Where the engine's processes write their counts (see tasks/kernels/uses.py)."""
        return Path(self.env[USES])


def write_plugin(
    folder: Path, uses: Path, kernels: Sequence[tuple[KernelDefinition, str, Path | None]]
) -> EnginePlugin:
    """Write the folder for these kernels: definition, backend, and the built library of a compiled one.

    The engine may see it under another path, such as a read-only mount: nothing in it is absolute.

    Raises:
        InputError: there are no kernels, one is given twice, or its library is not there.
    """
    if not kernels:
        raise InputError("there are no accepted kernels to give to the engine")
    package = folder / PACKAGE
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    described = []
    for definition, backend, library in kernels:
        place = package / definition.name
        if place.exists():
            raise InputError(f"kernel {definition.name} is given twice: choose one backend")
        place.mkdir()
        shutil.copyfile(definition.folder / "reference.py", place / "reference.py")
        spec = definition.backend(backend)
        device, key = DEVICES[backend]
        if isinstance(spec, CompiledBackend):
            if library is None or not library.is_file():
                raise InputError(f"kernel {definition.name} for {backend} has not been built")
            shutil.copyfile(library, place / library.name)
        else:
            for source in definition.sources(backend):
                shutil.copyfile(source, place / source.name)
        described.append(
            {
                "name": definition.name,
                "schema": definition.file.operator,
                "out_schema": definition.out_schema,
                "library": library.name if library else None,
                "module": None if isinstance(spec, CompiledBackend) else Path(spec.module).name,
                "device": device,
                "key": key,
                "dtypes": list(definition.file.dtypes),
                "replaces": list(definition.file.replaces),
                "digest": definition.digest(backend),
            }
        )
    shutil.copyfile(Path(__file__).with_name("plugin.py"), package / "plugin.py")
    (package / "__init__.py").write_text("")
    write_json(package / "kernels.json", described)
    _announce(folder)
    first = {
        name: [PACKAGE.removesuffix("_kernels"), "native"]
        for name in IR_OPERATORS
        if any(f"vllm_ir::{name}" in definition.file.replaces for definition, _, _ in kernels)
    }
    return EnginePlugin(
        folder=str(folder),
        arguments=("--ir-op-priority", json.dumps(first)) if first else (),
        env={"PYTHONPATH": str(folder), USES: str(uses)},
    )


def _announce(folder: Path) -> None:
    """The metadata by which Python finds the entry point without an installation."""
    metadata = folder / f"{PACKAGE}-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{PACKAGE} = {PACKAGE}.plugin:register\n")
