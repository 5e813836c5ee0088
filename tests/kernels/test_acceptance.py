"""The acceptance rejects each planted fault for the right reason, and no honest variant; a death is a verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from day0.home import PROJECT
from day0.verdict import Verdict
from tasks.kernels.acceptance.run import ENVIRONMENT, accept
from tasks.kernels.definition import KernelDefinition
from tests.kernels.conftest import KERNEL_YAML, MakeKernel
from tests.kernels.faults.trial import VARIANTS, make_folder

pytestmark = pytest.mark.reference

ONLY_PYTHON = KERNEL_YAML.replace("  cpu: {sources: [cpu/kernel.cpp], flags: [-O1]}\n", "")

BEFORE = """import threading, time
import torch

KEEP, AHEAD = {}, []


def spin():
    while True:
        pass
"""


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One DAY0_HOME, so that the variants are compiled once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def tried(shared_home: Path) -> dict[str, Any]:
    """All variants, three times each with other inputs."""
    environment = os.environ | ENVIRONMENT | {"DAY0_HOME": str(shared_home)}
    command = [sys.executable, "-m", "tests.kernels.faults.trial", "--repeats", "3"]
    done = subprocess.run(command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_there_are_twelve_of_each() -> None:
    assert (len(VARIANTS["faults"]), len(VARIANTS["honest"])) == (12, 12)


@pytest.mark.parametrize("name", VARIANTS["faults"])
def test_a_fault_is_rejected_with_its_reason(tried: dict[str, Any], name: str) -> None:
    expected, found = VARIANTS["faults"][name], tried[name]
    assert sum(found["ended"].values()) == 3
    assert set(found["ended"]) <= set(expected["kinds"])
    assert all(expected["words"] in reason for reason in found["reasons"].values())


@pytest.mark.parametrize("name", VARIANTS["honest"])
def test_an_honest_variant_is_not_rejected(tried: dict[str, Any], name: str) -> None:
    assert tried[name]["ended"] == {"accepted": 3}, tried[name]["reasons"]


@pytest.mark.parametrize(
    ("variant", "limit", "says"),
    [
        ("crash", 60, "its process was ended by SIGABRT, at "),
        ("killed", 60, "its process was ended by SIGKILL, as the kernel of the system does when memory runs out"),
        ("hang", 8, "it did not end in 8 s, at float32, rows=1 hidden=1, contiguous"),
    ],
)
def test_a_death_is_a_verdict(
    shared_home: Path,
    tried: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    limit: float,
    says: str,
) -> None:
    monkeypatch.setenv("DAY0_HOME", str(shared_home))
    monkeypatch.setenv("VARIANT", variant)
    kernel = accept(KernelDefinition(make_folder(tmp_path)), "cpu", limit=limit, seed=1)
    assert kernel.verdict is Verdict.FAIL
    assert says in kernel.error["reason"]
    assert kernel.error["seed"] == 1


@pytest.mark.parametrize(
    ("run", "kind", "says"),
    [
        ("    return x.mul(by).double()", "structure", "has dtype torch.float64"),
        ("    return x.mul(by)[:-1]", "structure", "has shape (6,)"),
        ("    return x.mul(by), x", "raised", ""),
        ("    return x.mul_(by)", "input", "the argument x was changed"),
        ("    return KEEP.setdefault(x.numel(), torch.empty(x.numel())).copy_(x * by)", "aliased", "earlier call"),
        ("    return torch.empty(2 * x.numel())[::2].copy_(x * by)", "structure", "not contiguous"),
        ("    raise ValueError('no such shape')", "raised", "ValueError: no such shape"),
        ("    threading.Thread(target=spin, daemon=True).start()\n    return x * by", "threads", "still works"),
        ("    time.perf_counter = lambda: 0.0\n    return x * by", "tampered", "time.perf_counter was replaced"),
        ("    torch.equal = lambda *_: True\n    return x * by", "tampered", "torch.equal was replaced"),
    ],
)
def test_what_python_kernels_can_do_wrong(
    make_kernel: MakeKernel, kernels_home: Path, run: str, kind: str, says: str
) -> None:
    before = (
        "import threading, time\nimport torch\n\nKEEP, AHEAD = {}, []\n\n\ndef spin():\n    while True:\n        pass\n"
    )
    module = f"{before}\n\ndef run(x, by):\n{run}\n"
    folder = make_kernel(**{"kernel.yaml": ONLY_PYTHON, "triton/kernel.py": module})
    kernel = accept(KernelDefinition(folder), "triton", interpret=True)
    assert kernel.verdict is Verdict.FAIL, kernel.error
    assert kernel.error["reason"].startswith(kind)
    assert says in kernel.error["reason"]


def test_without_its_device_a_kernel_is_not_accepted(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"kernel.yaml": ONLY_PYTHON}))
    interpreted = accept(definition, "triton", interpret=True)
    assert interpreted.verdict is Verdict.INCONCLUSIVE
    assert interpreted.error["reason"] == "right under Triton's interpreter; not run on a device"
    assert interpreted.error["float32"]["output 0"]["ratio"] == 1.0
