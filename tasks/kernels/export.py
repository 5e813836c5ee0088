"""Accepted kernels in the layout of the hub's kernels: `NAME/build/VARIANT/`, read by the hub's client (`kernels`).

The layout, metadata.json and its digests are those of huggingface/kernels 8ac69fc (kernels-data/src/metadata.rs and
digest.rs, docs/source/kernel-requirements.md).
"""

from __future__ import annotations

import base64
import hashlib
import platform
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from day0.artifacts.kernels import Kernel
from day0.errors import EvidenceMissing, InputError
from day0.files import write_json
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import usual_device
from tasks.kernels.build import library_of
from tasks.kernels.definition import KernelDefinition, PackageBackend

#: Libraries are written to torch's stable ABI of this version: they load in it and in later ones.
_STABLE_ABI = "torch-stable-abi210"
_LICENCE = "Apache-2.0"
_VERSION = 1


def export(definition: KernelDefinition, kernel: Kernel, folder: Path, device: Device | None = None) -> Path:
    """Write an accepted kernel's build below `folder`, and return the build's folder. One that is there is replaced.

    Args:
        device: the target's, which the kernel was accepted on; its own where no target says another.

    Raises:
        EvidenceMissing: the kernel is not accepted.
        InputError: it is another project's.
        BuildFailed, Unavailable: its library is not here and could not be built.
    """
    spec = definition.backend(kernel.backend)
    if isinstance(spec, PackageBackend):
        raise InputError(f"{kernel.name} for {kernel.backend} is {spec.package}'s own: there is nothing to export")
    if kernel.verdict is not Verdict.PASS:
        reason = kernel.error.get("reason", "it was not tried")
        raise EvidenceMissing(f"{kernel.name} for {kernel.backend} is not accepted, so it is not exported: {reason}")
    title = kernel.name.replace("_", "-")
    library = library_of(definition, kernel.backend, device)
    backend, variant = _variant(kernel.backend, (device or usual_device(kernel.backend)).name)
    place = folder / title / "build" / variant
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".export-") as temporary:
        made = Path(temporary, variant)
        made.mkdir()
        _write(definition, kernel, library, made)
        write_json(made / "metadata.json", _metadata(kernel, backend, made, definition.folder))
        if place.exists():
            shutil.rmtree(place)
        made.rename(place)
    text = _rendered("README.md.j2", definition, None, title=title, module=kernel.name, licence=_LICENCE.lower())
    (folder / title / "README.md").write_text(text)
    return place


def _write(definition: KernelDefinition, kernel: Kernel, library: Path | None, made: Path) -> None:
    shutil.copyfile(definition.folder / "reference.py", made / "reference.py")
    if library is not None:
        shutil.copyfile(library, made / library.name)
    else:
        for source in definition.sources(kernel.backend):
            shutil.copyfile(source, made / source.name)
    (made / "__init__.py").write_text(
        _rendered("compiled.py.j2" if library else "triton.py.j2", definition, library.name if library else None)
    )
    write_json(made / "day0.json", {"kernel": kernel.to_json(), "schema": definition.file.operator})


def _rendered(template: str, definition: KernelDefinition, library: str | None, **more: str) -> str:
    folder = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=folder, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    about = {
        "name": definition.name,
        "what": definition.file.what,
        "schema": definition.file.operator,
        "out_schema": definition.out_schema,
        "mutates": definition.schema.mutates,
        "library": library,
    }
    return environment.get_template(template).render(about | more)


def _variant(backend: str, device: str) -> tuple[str, str]:
    """The hub's name of a backend, and of the build for this machine."""
    where = f"{platform.machine()}-{platform.system().lower()}"
    if backend == "cpu":
        return "cpu", f"{_STABLE_ABI}-cpu-{where}"
    if backend == "cuda":
        import torch

        if torch.version.cuda is None:
            raise EvidenceMissing("the torch here has no CUDA, whose version is in the name of a CUDA build")
        return "cuda", f"{_STABLE_ABI}-cu{torch.version.cuda.replace('.', '')}-{where}"
    return device, f"torch-{device}"


def _metadata(kernel: Kernel, backend: str, made: Path, folder: Path) -> dict[str, Any]:
    files = sorted(path for path in made.rglob("*") if path.is_file())
    return {
        "id": f"{kernel.name}_{backend}_{kernel.digest[:16]}",
        "name": kernel.name.replace("_", "-"),
        "version": _VERSION,
        "license": _LICENCE,
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {
            "algorithm": "sha256",
            "files": {
                path.relative_to(made).as_posix(): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
                for path in files
            },
        },
        "provenance": {"kernel-builder": {"version": f"day0 {version('day0')}"}, **_source(folder)},
    }


def _source(folder: Path) -> dict[str, Any]:
    """The commit that a kernel's folder is of, where it is in a Git repository."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"kernel": {"commit": commit, "dirty": bool(changed)}}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()
