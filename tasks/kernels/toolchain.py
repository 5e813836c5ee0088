"""Where kernels are compiled: on this machine, or in a container (container.py).

A toolchain names compilers and runs commands. What it runs has its sources in one folder and leaves its output in
another; both are given by relative paths, which are the same wherever it runs, so that no path is in the output.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from day0 import process
from tasks.kernels import compiler
from tasks.kernels.compiler import Compiler, Torch

#: Below the folder of a build: sources, with the folder of the kernel in it; what is made; temporary files.
SOURCES, OUTPUT, SCRATCH = "src", "out", "tmp"
#: Environment that changes what compilers make, and would not be in the key.
_IGNORED = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
_IGNORED_PREFIXES = ("TRITON_", "AMDGCN_", "LLVM_", "PTXAS_")
#: Triton fuses multiplication and addition by default in 3.9 and not in 3.10; kernels are proven with it.
TRITON_FP_FUSION = "1"
#: What every compilation sees: nothing random, no paths or lines of sources in binaries, no cache.
ENVIRONMENT = {
    "SOURCE_DATE_EPOCH": "0",
    "LC_ALL": "C",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TRITON_DEFAULT_FP_FUSION": TRITON_FP_FUSION,
    "TRITON_DISABLE_LINE_INFO": "1",
    "TRITON_ALWAYS_COMPILE": "1",
    "TRITON_DUMP_PTXAS_LOG": "1",
}


class Toolchain(Protocol):
    """Compilers, and a place to run them in."""

    @property
    def described(self) -> dict[str, Any]:
        """What belongs into the key of all that it builds."""

    def compiler(self, backend: str) -> Compiler:
        """The compiler of a backend's sources. Raises Unavailable or EvidenceMissing: there is none."""

    def torch(self) -> Torch:
        """torch's headers and libraries, by their paths where commands run."""

    def run(self, command: list[str], build: Path, where: str, on_line: Callable[[str], None]) -> None:
        """Run a command in the folder `build`/`where`; `on_line` is told each line that it prints.

        `build` has the folders `SOURCES`, `OUTPUT` and `SCRATCH`, the paths of the command lead to them.

        Raises:
            ProcessFailed: it ended with an error.
            StageTimeout, Cancelled: the stage's time was up.
        """


class Local:
    """This machine's compilers."""

    @property
    def described(self) -> dict[str, Any]:
        return {"machine": platform.machine()}

    def compiler(self, backend: str) -> Compiler:
        return {"cpu": compiler.cxx, "cuda": compiler.nvcc, "triton": compiler.triton}[backend]()

    def torch(self) -> Torch:
        return compiler.installed_torch()

    def run(self, command: list[str], build: Path, where: str, on_line: Callable[[str], None]) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in _IGNORED}
        kept = {name: value for name, value in kept.items() if not name.startswith(_IGNORED_PREFIXES)}
        scratch = build / SCRATCH
        own = {"TMPDIR": str(scratch), "TRITON_CACHE_DIR": str(scratch / "triton")}
        process.run(command, cwd=build / where, env=kept | ENVIRONMENT | own, on_line=on_line)
