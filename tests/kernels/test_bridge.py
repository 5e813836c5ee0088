"""A kernel on a device whose operators are not trusted: what its memory shows is seen across the bridge."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from day0.home import PROJECT
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import accept
from tasks.kernels.definition import KernelDefinition
from tests.kernels.bridged import KERNELS
from tests.kernels.conftest import INPUTS, KERNEL_YAML, REFERENCE, MakeKernel

pytestmark = pytest.mark.reference

EXPECTED: dict[str, str | tuple[str, ...]] = {
    "honest": "accepted",
    # What the memory held before is as a rule the poison, but may be what another call left there: then two differ.
    "unwritten": ("unwritten: ", "undetermined: "),
    "in_place": "input: ",
    "itself": "aliased: float32, size=7, contiguous: an output shares memory with argument 0",
    "overwritten": "stale: float32, size=7, contiguous: the output of an earlier call was overwritten by a later one",
    "by_address": "stale: ",
    "on_the_cpu": "structure: float32, size=7, contiguous: output 0 is on cpu, and it must be on simulated",
    "put_off": "stale: ",
    "elsewhere": "stream: ",
    "afterwards": "late: an output was written to after the call had returned",
}
ONLY_PYTHON = KERNEL_YAML.replace("  cpu: {sources: [cpu/kernel.cpp], flags: [-O1]}\n", "")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("bridged")
    for kernel in KERNELS:
        name = kernel.__name__
        folder = root / name
        (folder / "triton").mkdir(parents=True)
        text = ONLY_PYTHON.replace("name: scale", f"name: {name}").replace('"scale(', f'"{name}(')
        (folder / "kernel.yaml").write_text(text)
        (folder / "reference.py").write_text(REFERENCE)
        (folder / "inputs.py").write_text(INPUTS)
        (folder / "triton" / "kernel.py").write_text(f"from tests.kernels.bridged import {name} as run\n")
    command = [sys.executable, "-m", "tests.kernels.bridged", str(root)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.parametrize("name", [kernel.__name__ for kernel in KERNELS])
def test_a_fault_is_rejected_with_its_reason_and_what_is_right_is_not(found: dict[str, str], name: str) -> None:
    assert found[name].startswith(EXPECTED[name])


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (Device("npu", "PrivateUse1", ("torch_nothing",)), "no npu device here (torch_nothing, which brings npu, is"),
        (Device("npu", "PrivateUse1"), "no npu device here (RuntimeError: "),
        (Device("vendor", "PrivateUse1", ("tests.kernels.crashing",)), "its process was ended by SIGABRT, at opening"),
    ],
)
def test_without_the_device_nothing_is_concluded(
    make_kernel: MakeKernel, kernels_home: Path, device: Device, says: str
) -> None:
    kernel = accept(KernelDefinition(make_kernel(**{"kernel.yaml": ONLY_PYTHON})), "triton", device=device)
    assert kernel.verdict is Verdict.INCONCLUSIVE
    assert says in kernel.error["reason"]
    assert kernel.error["reason"].endswith(": it was not run")
