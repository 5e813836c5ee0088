"""Kernels compiled in a container: fenced in, and with the bytes that the same compilers make on this machine."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from day0.errors import InputError
from tasks.kernels.build import BuildFailed, Built, build
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel
from tests.kernels.conftest import KERNEL_YAML, MakeKernel
from tests.kernels.loading import assert_it_registers
from tests.kernels.test_ahead import MODULE

pytestmark = [pytest.mark.reference, pytest.mark.docker, pytest.mark.compilers]

YAML = KERNEL_YAML + "  cuda: {sources: [cuda/kernel.cu], flags: [-O1]}\n"
CUDA = """namespace { __global__ void twice(float* x) { x[threadIdx.x] *= 2; } }
extern "C" __attribute__((visibility("default"))) int answer() { twice<<<1, 1>>>(nullptr); return 42; }
"""


def _described(built: Built) -> dict[str, Any]:
    place = built.path.parent if built.path.is_file() else built.path
    found: dict[str, Any] = json.loads((place / "build.json").read_bytes())
    return found


@pytest.mark.compiler
def test_rotary_is_built_in_a_container_as_on_this_machine(kernels_home: Path) -> None:
    definition = find_kernel("rotary")
    there, here = build(definition, "cpu", runtime="docker"), build(definition, "cpu")
    assert_it_registers(definition.folder, "cpu", there.path, "CPU")
    inside, outside = _described(there), _described(here)
    assert there.key != here.key
    assert inside["image"].startswith("sha256:")
    differing = {key for key in inside.keys() | outside.keys() if inside.get(key) != outside.get(key)}
    # The bytes are the same where the compilers and torch are; where not, it is these that differ.
    assert differing == {"image"} or differing <= {"image", "files", "compiler", "torch"}
    if not differing & {"compiler", "torch"}:
        assert there.digest == here.digest
    assert build(definition, "cpu", runtime="docker").cached


def test_cuda_and_triton_are_built_in_a_container(make_kernel: MakeKernel, kernels_home: Path) -> None:
    files = {"kernel.yaml": YAML, "cuda/kernel.cu": CUDA, "triton/kernel.py": MODULE}
    definition = KernelDefinition(make_kernel(**files))
    built = build(definition, "cuda", "sm_90", runtime="docker")
    assert ctypes.CDLL(str(built.path)).answer() == 42
    assert "13.0" in _described(built)["compiler"]
    assert build(definition, "cuda", "sm_90", runtime="docker", rebuild=True).digest == built.digest
    (function,) = build(definition, "triton", "gfx942", runtime="docker").functions
    assert function["files"] == ["_scale-0.hsaco", "_scale-0.amdgcn"]


def test_a_container_reports_the_first_error(make_kernel: MakeKernel, kernels_home: Path) -> None:
    source = "int first() { return nowhere; }\n" + "".join(f"int f{n}() {{ return n{n}; }}\n" for n in range(300))
    files = {"cpu/kernel.cpp": source, "triton/kernel.py": MODULE.replace("return x * by", "return x * nowhere")}
    definition = KernelDefinition(make_kernel(**files))
    with pytest.raises(BuildFailed, match=r"kernel scale for cpu: cpu/kernel\.cpp:1: .nowhere. was not declared"):
        build(definition, "cpu", runtime="docker")
    with pytest.raises(BuildFailed, match=r"triton/kernel\.py:9: _scale-0: .*nowhere is not defined"):
        build(definition, "triton", "sm_90", runtime="docker")
    assert not [path for path in kernels_home.rglob("*") if path.suffix in (".so", ".cubin")]


def test_what_is_compiled_cannot_leave_its_fence(make_kernel: MakeKernel, kernels_home: Path) -> None:
    """A module is run when it is compiled: it says what it can reach."""
    probe = """import os, socket
from pathlib import Path
def writes(path):
    try:
        Path(path, "probe").write_text("")
    except OSError:
        return False
    return True
def online():
    try:
        socket.create_connection(("1.1.1.1", 53), timeout=2)
    except OSError:
        return False
    return True
found = [os.getuid() == 0, online(), writes("/src"), writes("/src/scale"), writes("/"), writes("/opt/compilers")]
raise SystemExit(f"root, network, writes: {found}; {writes('/tmp')}")
"""
    definition = KernelDefinition(make_kernel(**{"triton/kernel.py": probe}))
    none = ", ".join(["False"] * 6)
    with pytest.raises(BuildFailed, match=rf"root, network, writes: \[{none}\]; True"):
        build(definition, "triton", "sm_90", runtime="docker")


def test_there_are_two_ways_to_build(make_kernel: MakeKernel, kernels_home: Path) -> None:
    with pytest.raises(InputError, match="'podman' is no way to build: process or docker"):
        build(KernelDefinition(make_kernel()), "cpu", runtime="podman")
