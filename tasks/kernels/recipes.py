"""How each backend of a kernel is built by a toolchain: the command, and all that its output follows from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from day0.artifacts.base import Frozen
from day0.config import read_yaml
from day0.errors import InputError
from tasks.kernels import compiler
from tasks.kernels.definition import CompiledBackend, KernelDefinition, PackageBackend
from tasks.kernels.toolchain import ENVIRONMENT, OUTPUT, SCRATCH, SOURCES, Toolchain

#: GPUs that CUDA sources are compiled for where no target says which: A100, H100 and H200, B200, RTX 50.
CUDA_ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
_WORKER = Path(__file__).with_name("ahead_worker.py")
_LIMITS = Path(__file__).with_name("architectures.yaml")


class Unfit(Exception):
    """What the compiler left cannot be used, or does not fit the device."""


class Function(Frozen):
    """What ahead_worker.py says of a function that it has compiled."""

    name: str
    files: tuple[str, ...]
    registers: int | None
    spills: int | None
    shared: int
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """How to build, and `described`, whose digest is the key."""

    toolchain: Toolchain
    folder: str
    """Where the command runs, below the folder of sources."""
    command: list[str]
    contents: dict[str, bytes]
    """The sources, by their paths below the folder of sources."""
    described: dict[str, Any]
    output: str
    """The library's name, or that of what the worker leaves."""
    finish: Callable[[Path], tuple[dict[str, Any], ...]]
    """From the folder of outputs: a record of each compiled function. Raises Unfit."""

    def run(self, build: Path, on_line: Callable[[str], None]) -> tuple[dict[str, Any], ...]:
        """Build below the folder `build`; what is made lies in its `OUTPUT`.

        From copies, so that what is in the key is what is compiled.

        Raises:
            ProcessFailed, Unfit: the compiler rejects the sources, or the device would reject what it made.
        """
        for name, content in self.contents.items():
            path = build / SOURCES / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name in (OUTPUT, SCRATCH):
            (build / name).mkdir()
        self.toolchain.run(self.command, build, f"{SOURCES}/{self.folder}", on_line)
        made = list((build / OUTPUT).iterdir())
        if wrong := next((path.name for path in made if path.is_symlink() or not path.is_file()), None):
            raise Unfit(f"the compiler left {wrong!r}, which is no file")
        if self.output not in [path.name for path in made]:
            raise Unfit("the compiler left no output")
        return self.finish(build / OUTPUT)


def recipe(definition: KernelDefinition, backend: str, architecture: str | None, toolchain: Toolchain) -> Recipe:
    """The recipe of one backend.

    `architecture` is a name of architectures.yaml: what Triton needs, and what CUDA sources are compiled for, by
    default all of CUDA_ARCHITECTURES.

    Raises:
        InputError: the backend is compiled by nobody, or not for this architecture.
        Unavailable, EvidenceMissing: the toolchain lacks the compiler, or torch.
    """
    spec = definition.backend(backend)
    if isinstance(spec, PackageBackend):
        raise InputError(f"kernel {definition.name}: backend {backend} is not compiled: {spec.package} computes it")
    described = {
        "kernel": definition.name,
        "backend": backend,
        "operator": definition.file.operator,
        **toolchain.described,
    }
    contents = {_below(path, definition): path.read_bytes() for path in definition.sources(backend)}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    if isinstance(spec, CompiledBackend):
        wanted = (architecture,) if architecture else CUDA_ARCHITECTURES
        return _library(definition, backend, spec, wanted, toolchain, contents, {**described, "sources": digests})
    if architecture is None:
        raise InputError(f"kernel {definition.name}: Triton compiles for one architecture: give a target that has one")
    return _ahead(definition, spec.module, architecture, toolchain, contents, {**described, "sources": digests})


def _library(
    definition: KernelDefinition,
    backend: str,
    spec: CompiledBackend,
    wanted: tuple[str, ...],
    toolchain: Toolchain,
    contents: dict[str, bytes],
    described: dict[str, Any],
) -> Recipe:
    """A shared library of C++ or CUDA C++ sources, in torch's stable ABI."""
    torch, chosen = toolchain.torch(), toolchain.compiler(backend)
    output, scratch = f"../../{OUTPUT}/{definition.name}.so", f"../../{SCRATCH}"

    def command(chosen: compiler.Compiler, torch: compiler.Torch) -> list[str]:
        if backend == "cuda":
            return compiler.nvcc_command(chosen, torch, spec.sources, spec.flags, wanted, output, scratch)
        return compiler.cxx_command(chosen, torch, spec.sources, spec.flags, output)

    return Recipe(
        toolchain=toolchain,
        folder=definition.name,
        command=command(chosen, torch),
        contents=contents,
        described={
            **described,
            "compiler": chosen.version,
            "host_compiler": toolchain.compiler("cpu").version if backend == "cuda" else None,
            "torch": torch.version,
            # The call itself, with places for paths: another way of calling makes another library.
            "command": command(compiler.Compiler("COMPILER", ""), compiler.Torch(Path("TORCH"), "")),
        },
        output=f"{definition.name}.so",
        finish=lambda folder: (),
    )


def _ahead(
    definition: KernelDefinition,
    module: str,
    architecture: str,
    toolchain: Toolchain,
    contents: dict[str, bytes],
    described: dict[str, Any],
) -> Recipe:
    """The binaries of what a Triton kernel's AHEAD lists, for one architecture."""
    limit = shared_memory(architecture)
    chosen = toolchain.compiler("triton")
    call = ["-P", f"../{_WORKER.name}", module, architecture, f"../../{OUTPUT}"]
    worker = _WORKER.read_bytes()

    def finish(folder: Path) -> tuple[dict[str, Any], ...]:
        listing = folder / "functions.json"
        try:
            functions = tuple(Function.model_validate(one) for one in json.loads(listing.read_bytes()))
        except (ValueError, TypeError) as error:
            raise Unfit(f"{module}: what was compiled is not told: {error}") from error
        listing.unlink()
        there = {path.name for path in folder.iterdir()}
        if not functions or there != {name for function in functions for name in function.files}:
            raise Unfit(f"{module}: the files that were made are not those of the functions that were compiled")
        if large := next((function for function in functions if function.shared > limit), None):
            raise Unfit(
                f"{module}: {large.name} takes {large.shared} bytes of shared memory, and {architecture} has {limit} "
                "for a block"
            )
        return tuple(function.to_json() for function in functions)

    return Recipe(
        toolchain=toolchain,
        folder=definition.name,
        command=[chosen.path, *call],
        contents={**contents, _WORKER.name: worker},
        described={
            **described,
            "compiler": chosen.version,
            "architecture": architecture,
            "environment": {name: value for name, value in ENVIRONMENT.items() if name.startswith("TRITON_")},
            "worker": hashlib.sha256(worker).hexdigest(),
            "command": call,
        },
        output="functions.json",
        finish=finish,
    )


def shared_memory(architecture: str) -> int:
    """Bytes that a block of threads may have. Raises InputError: the architecture is not in architectures.yaml."""
    limits = _limits()
    if architecture not in limits:
        raise InputError(f"{_LIMITS.name} has no limits of {architecture}; it has {', '.join(limits)}")
    return limits[architecture]


@cache
def _limits() -> dict[str, int]:
    found: dict[str, int] = read_yaml(_LIMITS)
    return found


def _below(path: Path, definition: KernelDefinition) -> str:
    return path.relative_to(definition.folder.parent).as_posix()
