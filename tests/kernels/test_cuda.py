"""CUDA C++ is compiled without a GPU: the same bytes anywhere, no spilled registers, and it registers for CUDA.

What our kernels compute is tried on the CPU (tests/kernels/emulation.py). Their verdict stays open until they ran on a
device: how they run there is not tried here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from day0.home import PROJECT
from tasks.kernels.build import BuildFailed, Built, build
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import kernel_names
from tests.kernels.conftest import KERNEL_YAML, MakeKernel
from tests.kernels.emulation import emulate
from tests.kernels.loading import assert_it_registers

pytestmark = [pytest.mark.reference, pytest.mark.compiler, pytest.mark.nvcc]

YAML = KERNEL_YAML + "  cuda: {sources: [cuda/kernel.cu, cuda/second.cu], flags: [-O1]}\n"
#: Nothing external but one function; internal symbols of either kind; an assertion, which names its file.
SOURCE = """#include <cassert>
namespace {
__device__ int counted;
template <typename T> __global__ void add(T* x, T by, int size) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  assert(size > 0);
  if (i < size) {
    x[i] += by;
    atomicAdd(&counted, 1);
  }
}
void launch(float* x) { add<float><<<1, 32>>>(x, 1.0f, 32); }
struct Registered { Registered(void (*function)(float*)) : function(function) {} void (*function)(float*); };
Registered registered(launch);
}
"""
SECOND = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'
OURS = [
    name
    for name in kernel_names(PROJECT / "kernels")
    if KernelDefinition(PROJECT / "kernels" / name).file.backends.cuda
]


def test_the_same_bytes_wherever_and_whenever_it_is_built(
    make_kernel: MakeKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_kernel(**{"kernel.yaml": YAML, "cuda/kernel.cu": SOURCE, "cuda/second.cu": SECOND})
    made: list[Built] = []
    for name in ("one", "a-much-longer-name/two"):
        monkeypatch.setenv("DAY0_HOME", str(tmp_path / name))
        made.append(build(KernelDefinition(folder), "cuda", "sm_90"))
    content = made[0].path.read_bytes()
    assert content == made[1].path.read_bytes()
    assert made[0].key == made[1].key
    assert str(tmp_path).encode() not in content
    assert b"tmpxft" not in content


def test_nvccs_first_error_is_reported(make_kernel: MakeKernel, kernels_home: Path) -> None:
    source = SOURCE.replace("x[i] += by", "x[i] += nowhere")
    definition = KernelDefinition(
        make_kernel(**{"kernel.yaml": YAML, "cuda/kernel.cu": source, "cuda/second.cu": SECOND})
    )
    says = r'kernel scale for cuda: cuda/kernel\.cu:8: identifier "nowhere" is undefined'
    with pytest.raises(BuildFailed, match=says):
        build(definition, "cuda", "sm_90")


@cache
def _built(name: str) -> Built:
    return build(KernelDefinition(PROJECT / "kernels" / name), "cuda", "sm_90")


@pytest.mark.parametrize("name", OURS)
def test_our_kernels_register_for_cuda(name: str) -> None:
    """In a torch without CUDA, too."""
    assert_it_registers(PROJECT / "kernels" / name, "cuda", _built(name).path, "CUDA")


@pytest.mark.triton
@pytest.mark.parametrize("name", OURS)
def test_our_kernels_keep_what_they_hold_in_registers(name: str) -> None:
    from triton import knobs  # its wheel brings cuobjdump

    said = subprocess.run(
        [knobs.nvidia.cuobjdump.path, "-res-usage", str(_built(name).path)], capture_output=True, text=True, check=True
    ).stdout
    used = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    assert used
    assert [function for function, _, stack, local in used if int(stack) or int(local)] == []


def _emulated(name: str, folder: Path, *faults: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    place = emulate(PROJECT / "kernels" / name, folder, *faults)
    library = build(KernelDefinition(place), "cpu").path
    command = [sys.executable, "-m", "tests.kernels.emulation", str(place), str(library)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", OURS)
def test_what_our_kernels_compute_is_right_on_emulated_lanes(name: str, tmp_path: Path) -> None:
    """Not on a GPU: the same source, with a warp's lanes as fibers of the CPU."""
    done = _emulated(name, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compared" in done.stdout


def test_a_wrong_kernel_is_found_by_emulation(tmp_path: Path) -> None:
    fault = ("lane < blockDim.x / 32 ? partial[lane]", "lane < blockDim.x / 64 ? partial[lane]")
    done = _emulated("fused_add_rms_norm", tmp_path, fault)
    assert done.returncode != 0
    assert "Tensor-likes are not close" in done.stderr
