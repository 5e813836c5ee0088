"""An accepted kernel in the hub's layout is loaded by the hub's own client, with nothing of day0, and is a provider."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from day0.artifacts.kernels import Kernel
from day0.errors import EvidenceMissing, InputError
from day0.target_operators import Device
from day0.verdict import Verdict
from flows.commands.kernels import command
from tasks.kernels.acceptance.run import accept, verdict
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.export import export
from tests.kernels.conftest import KERNEL_YAML, MakeKernel
from tests.kernels.providing import BACKENDS, REPOSITORY

pytestmark = [pytest.mark.reference, pytest.mark.compiler]

CPU = Device("cpu", "CPU")
#: Through torch's C interface: no headers, and compiled in a moment.
SOURCE = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

torch::stable::Tensor scale(const torch::stable::Tensor& x, double by) {
    auto given = torch::stable::contiguous(x);
    auto out = torch::stable::empty_like(given);
    const float* from = given.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    for (int64_t i = 0; i < given.numel(); ++i) to[i] = from[i] * static_cast<float>(by);
    return out;
}

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) { library.impl("scale", TORCH_BOX(&scale)); }
"""
FRESH = """
import sys

sys.modules["day0"] = sys.modules["tasks"] = None
from pathlib import Path

import kernels
import torch
from kernels._rust import Digest

scaling = kernels.get_local_kernel(Path(sys.argv[1]))
x = torch.randn(3, 5)
assert torch.equal(scaling.scale(x, 2.0), x * 2)
compiled = torch.compile(lambda x: scaling.scale(x, 3.0), backend="eager", fullgraph=True)
assert torch.equal(compiled(x), x * 3)
(loaded,) = kernels.get_loaded_kernels()
build = next(Path(sys.argv[1], "build").iterdir())
loaded.metadata.digest.validate(Digest.hash_variant(loaded.metadata.digest.algorithm, build))
print(loaded.metadata.name, loaded.metadata.version, loaded.metadata.license, loaded.metadata.backend.backend_type)
"""
ADAPTER = """
from kernels import get_kernel

theirs = get_kernel("community/scaling", version=1)


def declines(x, by):
    return ""


def run(x, by):
    return theirs.scale(x, by)
"""


def test_an_accepted_kernel_comes_back_from_the_hubs_layout(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = KernelDefinition(make_kernel(**{"cpu/kernel.cpp": SOURCE}))
    kernel = accept(definition, "cpu")
    assert kernel.verdict is Verdict.PASS, kernel.error
    build = export(definition, kernel, tmp_path / "out")
    assert build.relative_to(tmp_path / "out").parts[:2] == ("scale", "build")
    assert export(definition, kernel, tmp_path / "out") == build
    assert json.loads((build / "day0.json").read_text())["kernel"] == kernel.to_json()
    command = [sys.executable, "-I", "-c", FRESH, str(tmp_path / "out" / "scale")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["scale", "1", "Apache-2.0", "cpu"]


def test_what_is_exported_is_a_provider(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name, since one process has one implementation of an operator."""
    source = SOURCE.replace('impl("scale"', 'impl("scaled"')
    other = make_kernel(**{"cpu/kernel.cpp": source}).rename(tmp_path / "kernels" / "scaled")
    (other / "kernel.yaml").write_text(KERNEL_YAML.replace("scale(", "scaled(").replace("name: scale", "name: scaled"))
    definition = KernelDefinition(other)
    kernel = accept(definition, "cpu")
    assert kernel.verdict is Verdict.PASS, kernel.error
    export(definition, kernel, tmp_path / "out")
    monkeypatch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={tmp_path / 'out' / 'scaled'}")
    adapter = ADAPTER.replace("theirs.scale(", "theirs.scaled(")
    provided = KernelDefinition(make_kernel(**{"kernel.yaml": BACKENDS, "hub.py": adapter}))
    found = accept(provided, "hub", device=CPU)
    assert found.verdict is Verdict.PASS, found.error


def test_only_what_is_accepted_and_ours_is_exported(make_kernel: MakeKernel, tmp_path: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"kernel.yaml": BACKENDS, "hub.py": ADAPTER}))
    untried = verdict(definition, "cpu", Verdict.INCONCLUSIVE, "not accepted yet")
    with pytest.raises(EvidenceMissing, match="scale for cpu is not accepted, so it is not exported: not accepted yet"):
        export(definition, untried, tmp_path / "out")
    theirs: Kernel = verdict(definition, "hub", Verdict.PASS, "")
    with pytest.raises(InputError, match=f"scale for hub is {REPOSITORY}'s own"):
        export(definition, theirs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_lacks(
    make_kernel: MakeKernel, kernels_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAY0_KERNELS", str(make_kernel().parent))
    without = CliRunner().invoke(command, ["export", "--target", "cpu"])
    assert (without.exit_code, "--output" in without.output) == (2, True), without.output
    untried = CliRunner().invoke(command, ["export", "--target", "cpu", "--output", str(tmp_path / "out")])
    assert (untried.exit_code, "none of the kernels is accepted for cpu" in untried.output) == (3, True), untried.output
