"""Building a kernel by content: what was built once is found again, and is the same wherever it is built.

What is built lies in `DAY0_HOME/kernels/KEY/`: a library `NAME.so`, or the binaries that a Triton kernel lists, and
`build.json`, which says what it was made of. KEY is the digest of the sources, the flags, the compiler and its version,
torch's version, the architecture and, where it is built in a container, the image.
"""

from __future__ import annotations

import errno
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
from day0.errors import CheckFailed, EvidenceMissing, InputError
from day0.files import digest_of, sha256_file, write_json
from day0.home import make_home
from day0.progress import report
from day0.target import load_target
from day0.target_operators import Device
from tasks.kernels.definition import CompiledBackend, KernelDefinition, TritonBackend
from tasks.kernels.recipes import Recipe, Unfit, recipe
from tasks.kernels.toolchain import OUTPUT, Local, Toolchain

logger = logging.getLogger("day0.kernels")

_ERROR = re.compile(r"^(?P<file>[^\s:(][^:(]*)[:(](?P<line>\d+)\)?(?::\d+)?:\s*(?:fatal )?error\s*:?\s*(?P<what>.+)$")
_OTHER_ERRORS = ("error", "undefined reference", "cannot find")


@dataclass(frozen=True)
class Built:
    """What was built: `path` is the library, or the folder of a Triton kernel's binaries; `digest` the SHA-256 of the
    library, or of the names and digests of the binaries; `cached` whether it was there already. `functions` has for
    each binary `name`, `files`, `registers` and `spills` (of a thread), `shared` (bytes of a block), `metadata`.
    """

    name: str
    backend: str
    path: Path
    digest: str
    key: str
    cached: bool
    functions: tuple[dict[str, Any], ...] = ()


class BuildFailed(CheckFailed):
    """A compiler rejected a kernel's sources; the message holds its first error."""


def build(
    definition: KernelDefinition,
    backend: str,
    architecture: str | None = None,
    *,
    runtime: str = "process",
    rebuild: bool = False,
) -> Built:
    """A kernel's backend `cpu`, `cuda` or `triton`, built now or found. No device is needed.

    Several processes may build the same at once: one does.

    Args:
        architecture: for `cuda` and `triton`, such as sm_90 or gfx942: `architecture_of` gives a target's. Without it
            `cuda` is compiled for those in recipes.CUDA_ARCHITECTURES.
        runtime: `process`, this machine's compilers, or `docker`, those of an image (see container.py).

    Raises:
        BuildFailed: names the kernel, and the file and line of the compiler's first error.
        InputError: the backend is not compiled, or not for this architecture; the disk is full.
        Unavailable: there is no compiler, or no Docker daemon.
        EvidenceMissing: there is no torch to build against, or no Triton.
        StageTimeout, Cancelled: the stage's time was up.
    """
    how = recipe(definition, backend, architecture, _toolchain(runtime))
    key = digest_of(how.described)
    place = make_home() / "kernels" / key
    place.mkdir(parents=True, exist_ok=True)
    with deadline.file_lock(place / "lock", lambda: report(f"waiting for another build of {definition.name}")):
        made = None if rebuild else _known(place)
        cached = made is not None
        if made is None:
            report(f"compiling {definition.name} for {backend}")
            made = _compile(definition, backend, how, place)
    if not cached:
        logger.info("%s for %s is built: %s", definition.name, backend, place)
    library = isinstance(definition.backend(backend), CompiledBackend)
    return Built(
        name=definition.name,
        backend=backend,
        path=place / how.output if library else place,
        digest=made["files"][how.output] if library else digest_of(made["files"]),
        key=key,
        cached=cached,
        functions=tuple(made["functions"]),
    )


def architecture_of(target: str, definition: KernelDefinition, backend: str) -> str | None:
    """What a kernel's backend is compiled for on a target; None where it is not for a GPU.

    Raises:
        EvidenceMissing: it is compiled on the target's device, by the vendor's own compiler.
        InputError: there is no such target.
    """
    spec = definition.backend(backend)
    if backend == "cpu" or not isinstance(spec, CompiledBackend | TritonBackend):
        return None
    known = load_target(target).architecture
    if known is None:
        by = "vendor's Triton" if backend == "triton" else "vendor's compiler"
        raise EvidenceMissing(f"it is compiled on the device, by the {by} of {target}: it cannot be compiled here")
    return known.name


def library_of(definition: KernelDefinition, backend: str, device: Device | None = None) -> Path | None:
    """The built library of a backend, for the architecture of its target's device where that is known; None: it is not
    compiled. Raises what `build` does.
    """
    if not isinstance(definition.backend(backend), CompiledBackend):
        return None
    return build(definition, backend, device.architecture if device and backend != "cpu" else None).path


def _toolchain(runtime: str) -> Toolchain:
    if runtime == "process":
        return Local()
    if runtime == "docker":
        from tasks.kernels.container import Container

        return Container()
    raise InputError(f"{runtime!r} is no way to build: process or docker")


def _compile(definition: KernelDefinition, backend: str, how: Recipe, place: Path) -> dict[str, Any]:
    """Build in a folder of its own, then put the files in their place; what `build.json` says."""
    who = f"kernel {definition.name} for {backend}"
    errors = _FirstError()
    for left in place.glob(".build-*"):  # by a day0 that was killed: who builds holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=place) as made:
        work = Path(made)
        try:
            functions = how.run(work, errors)
        except process.ProcessFailed as error:
            if any(os.strerror(errno.ENOSPC) in line for line in error.tail):
                raise InputError(
                    f"{who}: no space is left on the disk of {place}: make room, or set DAY0_HOME"
                ) from error
            raise BuildFailed(f"{who}: {errors.found or error}") from error
        except Unfit as error:
            raise BuildFailed(f"{who}: {error}") from error
        (place / "build.json").unlink(missing_ok=True)
        files = sorted((work / OUTPUT).iterdir())
        digests = {path.name: sha256_file(path) for path in files}
        for path in files:
            shutil.copyfile(path, work / path.name)  # what a container made is another account's
            os.replace(work / path.name, place / path.name)
    written = {**how.described, "files": digests, "functions": list(functions)}
    write_json(place / "build.json", written)
    return written


class _FirstError:
    """Of the lines that a compiler prints, its first error as one clause, with file and line where it gives them."""

    def __init__(self) -> None:
        self._placed = self._other = ""

    @property
    def found(self) -> str:
        return self._placed or self._other

    def __call__(self, line: str) -> None:
        if line.startswith("compiling "):  # the worker's progress, see ahead_worker.py
            report(line)
        if not self._placed and (match := _ERROR.match(line.strip())):
            self._placed = f"{match['file']}:{match['line']}: {match['what'].strip()}"
        if not self._other and any(word in line for word in _OTHER_ERRORS):
            self._other = line.strip()


def _known(place: Path) -> dict[str, Any] | None:
    """What was built there, if it is whole."""
    try:
        written: dict[str, Any] = json.loads((place / "build.json").read_bytes())
        whole = all(sha256_file(place / name) == digest for name, digest in written["files"].items())
        return written if whole and written["files"] and isinstance(written["functions"], list) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
