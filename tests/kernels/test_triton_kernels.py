"""The project's Triton kernels, under the interpreter, and what of them is compiled without a device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from day0.home import PROJECT, configs
from day0.target import load_target
from tasks.kernels.build import build
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel, kernel_names
from tasks.kernels.modules import load_module
from tests.kernels.interpreted import CHECKS

pytestmark = [pytest.mark.reference, pytest.mark.triton]

INTERPRET = {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "1", "PYTHONWARNINGS": "ignore"}


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """What each check said under the interpreter; nothing: it passed."""
    command = [sys.executable, "-m", "tests.kernels.interpreted"]
    done = subprocess.run(command, cwd=PROJECT, env=os.environ | INTERPRET, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("name", list(CHECKS))
def test_under_the_interpreter(found: dict[str, str], name: str) -> None:
    assert not found[name], found[name]


def test_every_kernel_has_one() -> None:
    assert [name for name in kernel_names() if "triton" not in find_kernel(name).backends] == []


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942"])
@pytest.mark.parametrize("name", kernel_names())
def test_what_is_compiled_ahead_is_well_formed(name: str, architecture: str) -> None:
    """As kernels/README.md has it; compiling everything takes minutes and is what `day0 kernels build` does."""
    listed = load_module(find_kernel(name).folder / "triton" / "kernel.py").AHEAD
    entries = listed(architecture) if callable(listed) else listed
    assert len({entry["name"] for entry in entries}) == len(entries) > 2
    for entry in entries:
        names = entry["function"].arg_names
        assert set(entry["signature"]) | {key for key in entry["config"] if key in names} == set(names), entry["name"]
        assert not set(entry["signature"]) & set(entry["config"]), entry["name"]
        assert set(entry["divisible"]) <= set(entry["signature"]), entry["name"]


#: Of each of these kernels, what takes most of a device.
LARGEST = {"paged_decode_attention": "split-bf16-1-192-128", "grouped_matmul": "bf16-256"}
#: Appended to a module: it lists one of its entries.
ONE = """

_ALL = AHEAD


def AHEAD(architecture):
    return [e for e in (_ALL(architecture) if callable(_ALL) else _ALL) if e["name"] == {name!r}]
"""


def _architectures() -> set[str]:
    """Those of the targets that kernels are compiled for ahead of time."""
    targets = (load_target(path.stem) for path in (configs() / "targets").glob("*.yaml"))
    return {target.architecture.name for target in targets if target.architecture is not None}


@pytest.mark.parametrize("architecture", sorted(_architectures()))
@pytest.mark.parametrize("name", list(LARGEST))
def test_the_largest_function_fits_every_targets_gpu(
    kernels_home: Path, tmp_path: Path, name: str, architecture: str
) -> None:
    shutil.copytree(find_kernel(name).folder.parent / "common", tmp_path / "common")
    folder = Path(shutil.copytree(find_kernel(name).folder, tmp_path / name))
    module = folder / "triton" / "kernel.py"
    module.write_text(module.read_text() + ONE.format(name=LARGEST[name]))
    (function,) = build(KernelDefinition(folder), "triton", architecture).functions
    assert function["spills"] == 0
