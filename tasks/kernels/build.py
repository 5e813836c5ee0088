"""Building a kernel's library by content: what was built once is found again, and is the same wherever it is built.

A library lies in `DAY0_HOME/kernels/KEY/NAME.so` with `build.json`, which says what it was made of. KEY is the digest
of the sources, the flags, the compiler and its version, torch's version and the architecture.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from day0 import deadline, process
from day0.errors import CheckFailed, InputError
from day0.files import digest_of, sha256_file, write_json
from day0.home import make_home
from day0.progress import report
from tasks.kernels import compiler
from tasks.kernels.definition import CompiledBackend, KernelDefinition

logger = logging.getLogger("day0.kernels")

#: GPUs that CUDA sources are compiled for where the target says nothing else: A100, H100 and H200, B200, RTX 50.
CUDA_ARCHITECTURES = ("80", "90", "100", "120")
#: Triton fuses multiplication and addition by default in 3.9 and not in 3.10; kernels are proven with it.
TRITON_FP_FUSION = "1"
#: Environment that changes what compilers make, and would not be in the key.
_IGNORED_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "NVCC_APPEND_FLAGS")
_ERROR = re.compile(r"^(?P<file>[^\s:(][^:(]*)[:(](?P<line>\d+)\)?(?::\d+)?:\s*(?:fatal )?error\s*:?\s*(?P<what>.+)$")


@dataclass(frozen=True)
class Built:
    """A library that was built: its path, the SHA-256 of its bytes, whether it was there already, the seconds taken."""

    name: str
    backend: str
    path: Path
    digest: str
    key: str
    cached: bool


class BuildFailed(CheckFailed):
    """A compiler rejected a kernel's sources; the message holds its first error."""


def build(
    definition: KernelDefinition, backend: str, wanted: tuple[str, ...] = CUDA_ARCHITECTURES, rebuild: bool = False
) -> Built:
    """The library of a kernel's compiled backend, `cpu` or `cuda`, built now or found.

    `wanted` are compute capabilities for `cuda`. Several processes may build the same at once: one does.

    Raises:
        BuildFailed: names the kernel, and the file and line of the compiler's first error.
        Unavailable: there is no compiler.
        EvidenceMissing: there is no torch to build against.
        StageTimeout, Cancelled: the stage's time was up.
    """
    spec = definition.backend(backend)
    if not isinstance(spec, CompiledBackend):
        raise InputError(f"kernel {definition.name}: backend {backend} is not compiled to a library")
    recipe = _recipe(definition, backend, spec, wanted)
    key = digest_of(recipe.described)
    place = make_home() / "kernels" / key
    place.mkdir(parents=True, exist_ok=True)
    library = place / f"{definition.name}.so"
    with deadline.file_lock(place / "lock", lambda: report(f"waiting for another build of {definition.name}")):
        known = _known(place, library)
        if known and not rebuild:
            return Built(definition.name, backend, library, known, key, cached=True)
        report(f"compiling {definition.name} for {backend}")
        digest = _compile(definition, recipe, library)
        write_json(place / "build.json", {**recipe.described, "sha256": digest})
    logger.info("%s for %s is built: %s", definition.name, backend, library)
    return Built(definition.name, backend, library, digest, key, cached=False)


@dataclass(frozen=True)
class _Recipe:
    described: dict[str, Any]
    chosen: compiler.Compiler
    torch: compiler.Torch
    spec: CompiledBackend
    backend: str
    wanted: tuple[str, ...]


def _recipe(definition: KernelDefinition, backend: str, spec: CompiledBackend, wanted: tuple[str, ...]) -> _Recipe:
    """How it is built, and its description, whose digest is the key."""
    torch = compiler.installed_torch()
    chosen = compiler.nvcc() if backend == "cuda" else compiler.cxx()
    sources = {
        str(path.relative_to(definition.folder.parent)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in definition.sources(backend)
    }
    described = {
        "kernel": definition.name,
        "backend": backend,
        "operator": definition.file.operator,
        "sources": sources,
        "flags": list(spec.flags),
        "compiler": chosen.version,
        "host_compiler": compiler.cxx().version if backend == "cuda" else None,
        "torch": torch.version,
        "abi": compiler.TORCH_TARGET,
        "machine": compiler.machine(),
        "architectures": list(wanted) if backend == "cuda" else [],
        # The call itself, with places for paths: another way of calling makes another library.
        "command": _command(chosen, torch, spec, backend, wanted, Path("SOURCES"), Path("OUTPUT"), generic=True),
    }
    return _Recipe(described, chosen, torch, spec, backend, wanted)


def _command(
    chosen: compiler.Compiler,
    torch: compiler.Torch,
    spec: CompiledBackend,
    backend: str,
    wanted: tuple[str, ...],
    root: Path,
    output: Path,
    generic: bool = False,
) -> list[str]:
    sources = [root / name for name in spec.sources]
    if generic:
        chosen, torch = compiler.Compiler("COMPILER", ""), compiler.Torch(Path("TORCH"), "")
    if backend == "cuda":
        return compiler.nvcc_command(chosen, torch, sources, spec.flags, wanted, output)
    return compiler.cxx_command(chosen, torch, sources, spec.flags, output)


def _compile(definition: KernelDefinition, recipe: _Recipe, library: Path) -> str:
    """Compile from a copy of the sources into a folder of its own, then put the library in its place.

    From a copy, so that what was hashed is what is compiled, and in a folder whose name is in no byte of the output.
    """
    with tempfile.TemporaryDirectory(prefix=".build-", dir=library.parent) as made:
        work = Path(made)
        for path in definition.sources(recipe.backend):
            copied = work / path.relative_to(definition.folder.parent)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
        source = work / definition.folder.name
        output = source / library.name
        # Relative paths, from the folder of the sources: absolute ones would be in assertions and in symbols.
        command = _command(
            recipe.chosen, recipe.torch, recipe.spec, recipe.backend, recipe.wanted, Path(), Path(library.name)
        )
        environment = {name: value for name, value in os.environ.items() if name not in _IGNORED_VARIABLES}
        environment |= {"TMPDIR": str(work), "SOURCE_DATE_EPOCH": "0", "LC_ALL": "C"}
        try:
            process.run(command, cwd=source, env=environment)
        except process.ProcessFailed as error:
            raise BuildFailed(f"kernel {definition.name} for {recipe.backend}: {first_error(error)}") from error
        if not output.is_file():
            raise BuildFailed(f"kernel {definition.name} for {recipe.backend}: the compiler left no library")
        os.replace(output, library)
    return sha256_file(library)


def first_error(error: process.ProcessFailed) -> str:
    """The compiler's first error as one clause, with file and line where it gives them."""
    for line in error.tail:
        if match := _ERROR.match(line.strip()):
            return f"{match['file']}:{match['line']}: {match['what'].strip()}"
    for line in error.tail:
        if "error" in line or "undefined reference" in line or "cannot find" in line:
            return line.strip()
    return str(error)


def _known(place: Path, library: Path) -> str | None:
    """The digest of a library that is there and whole."""
    try:
        recorded = json.loads((place / "build.json").read_bytes())["sha256"]
        if library.is_file() and sha256_file(library) == recorded:
            return str(recorded)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None
