"""Where kernels lie, and which there are."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from day0.errors import InputError
from day0.files import folder_digest
from day0.home import PROJECT
from tasks.kernels.definition import KernelDefinition


def kernels_folder() -> Path:
    """Where kernels lie: `$DAY0_KERNELS`, by default the project's `kernels/`.

    Raises:
        InputError: there is no such folder.
    """
    folder = Path(os.environ.get("DAY0_KERNELS") or PROJECT / "kernels").expanduser().resolve()
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}, which DAY0_KERNELS names as that of kernels")
    return folder


def kernel_names(folder: Path | None = None) -> list[str]:
    """The kernels of a folder, in alphabetical order."""
    return sorted(path.parent.name for path in (folder or kernels_folder()).glob("*/kernel.yaml"))


def find_kernel(name: str, folder: Path | None = None) -> KernelDefinition:
    """Raises InputError: there is no kernel of that name (the nearest one is named), or its folder is malformed."""
    folder = folder or kernels_folder()
    known = kernel_names(folder)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise InputError(f"no kernel named {name!r} in {folder}; {hint}")
    return KernelDefinition(folder / name)


def sources_digest(folder: Path | None = None) -> str:
    """SHA-256 over the files of a folder of kernels."""
    return folder_digest(folder or kernels_folder())
