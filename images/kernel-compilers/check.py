"""Run when the image is made: compiles a line by each compiler, and prints where they are and what they say of
themselves as JSON, which day0 reads (tasks/kernels/container.py)."""

import json
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

LINES = {
    "g++": ("line.cpp", 'extern "C" int answer() { return 42; }\n'),
    "/opt/cuda/bin/nvcc": ("line.cu", "__global__ void f() {}\n"),
}


def said(path: str) -> str:
    """As day0 asks a compiler on the host: the first lines of its version."""
    lines = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    return " ".join(line.strip() for line in lines[:5] if line.strip())


compilers = {}
with tempfile.TemporaryDirectory() as folder:
    for name, (source, text) in LINES.items():
        Path(folder, source).write_text(text)
        path = shutil.which(name)
        if path is None:
            sys.exit(f"the base image has no {name}: make it with images/debian-base/make --compilers")
        flags = ["-Xcompiler=-fPIC", "-arch=sm_90", "-L/opt/cuda/lib"] if source.endswith(".cu") else ["-fPIC"]
        subprocess.run([path, *flags, "-shared", source, "-o", "line.so"], cwd=folder, check=True)
        compilers[{"line.cpp": "cpu", "line.cu": "cuda"}[source]] = {"path": path, "version": said(path)}
triton.compiler.make_backend(GPUTarget("cuda", 90, 32))
compilers["triton"] = {"path": sys.executable, "version": f"triton {version('triton')}"}
compilers["torch"] = {"path": str(Path(torch.__file__).parent), "version": version("torch")}
print(json.dumps(compilers))
