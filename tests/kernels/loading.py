"""Loading a built library in a process of its own: what registers operators cannot be undone in this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from day0.home import PROJECT

SCRIPT = """
import sys
from pathlib import Path
import torch
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.load import load
folder, backend, library, key = sys.argv[1:]
definition = KernelDefinition(Path(folder))
load(definition, backend, Path(library))
there = [k for k in ("CPU", "CUDA") if torch._C._dispatch_has_kernel_for_dispatch_key(definition.qualified, k)]
assert there == [key], there
assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{definition.qualified}.out", key)
"""


def assert_it_registers(folder: Path, backend: str, library: Path, key: str) -> None:
    """The library loads, and implements the kernel's operator and its `out` overload for that dispatch key alone."""
    command = [sys.executable, "-c", SCRIPT, str(folder), backend, str(library), key]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
