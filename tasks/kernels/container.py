"""Kernels compiled in a container: the compilers of images/kernel-compilers, fenced in.

It has no network and may write to the folder of outputs alone (see day0/container.py). The paths of a build's command
are the same as on this machine: /src, /out and /tmp lie to each other as a build's folders do.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from day0.container import read_output, run_contained
from day0.errors import Unavailable
from day0.home import images
from day0.image import build_image
from tasks.kernels.compiler import Compiler, Torch
from tasks.kernels.toolchain import ENVIRONMENT, OUTPUT, SCRATCH, SOURCES

#: The folder under images/.
IMAGE = "kernel-compilers"
_ENVIRONMENT = ENVIRONMENT | {
    "TMPDIR": f"/{SCRATCH}",
    "HOME": f"/{SCRATCH}",
    "TRITON_CACHE_DIR": f"/{SCRATCH}/triton",
}


class Container:
    """The compilers of the image, which is built now if it is not there.

    Raises:
        Unavailable: there is no Docker daemon, or the image cannot be built.
    """

    def __init__(self) -> None:
        self.image = build_image(IMAGE, images() / IMAGE)

    @property
    def described(self) -> dict[str, Any]:
        return {"machine": platform.machine(), "image": self.image}

    def compiler(self, backend: str) -> Compiler:
        found = self._compilers[backend]
        return Compiler(found["path"], found["version"])

    def torch(self) -> Torch:
        found = self._compilers["torch"]
        return Torch(Path(found["path"]), found["version"])

    def run(self, command: list[str], build: Path, where: str, on_line: Callable[[str], None]) -> None:
        build.chmod(0o755)  # the container's account is another
        run_contained(
            self.image,
            command,
            inputs={f"/{SOURCES}": build / SOURCES},
            output=(f"/{OUTPUT}", build / OUTPUT),
            env=_ENVIRONMENT,
            folder=f"/{where}",
            on_line=on_line,
        )

    @cached_property
    def _compilers(self) -> dict[str, dict[str, str]]:
        return _compilers(self.image)


@cache
def _compilers(image: str) -> dict[str, dict[str, str]]:
    """What the image's check.py has written: path and version of each compiler, and of torch."""
    with tempfile.TemporaryDirectory(prefix="day0-compilers-") as made:
        run_contained(image, ["cp", "/opt/day0/compilers.json", "/out/"], inputs={}, output=("/out", Path(made)))
        try:
            found: dict[str, dict[str, str]] = json.loads(read_output(Path(made), "compilers.json", 1 << 20))
        except (OSError, ValueError) as error:
            raise Unavailable(f"the image {image} does not say what compilers it has: {error}") from error
    return found
