"""The acceptance rejects each planted fault for the right reason, and no honest variant; a death is a verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from day0.home import PROJECT
from day0.verdict import Verdict
from tasks.kernels.acceptance.examine import Candidate, Examination
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.acceptance.run import ENVIRONMENT, accept
from tasks.kernels.definition import KernelDefinition
from tests.kernels.conftest import INPUTS, KERNEL_YAML, MakeKernel
from tests.kernels.faults.trial import VARIANTS, make_folder

pytestmark = [pytest.mark.reference, pytest.mark.compiler]

ONLY_PYTHON = KERNEL_YAML.replace("  cpu: {sources: [cpu/kernel.cpp], flags: [-O1]}\n", "")

BEFORE = """import hashlib, threading, time

AHEAD = []


def spin():
    while True:
        hashlib.sha256(bytes(1 << 20))


once = threading.Thread(target=spin, daemon=True)
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


def _keep(x: torch.Tensor, by: float, kept: dict[int, torch.Tensor] = {}) -> torch.Tensor:  # noqa: B006
    return kept.setdefault(x.numel(), torch.empty(x.numel())).copy_(x * by)


def _in_place(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.mul_(by).clone()


def _raises(x: torch.Tensor, by: float) -> torch.Tensor:
    raise ValueError("no such shape")


@pytest.mark.parametrize(
    ("run", "kind", "says"),
    [
        (lambda x, by: x.mul(by).double(), "structure", "has dtype torch.float64"),
        (lambda x, by: x.mul(by)[:-1], "structure", "has shape (6,), and it must be (7,)"),
        (lambda x, by: (x.mul(by), x), "structure", "2 outputs, and there must be 1"),
        (lambda x, by: [3], "structure", "something else than tensors"),
        (lambda x, by: x.repeat(2)[::2], "structure", "not contiguous"),
        (lambda x, by: x, "aliased", "shares memory with the argument x"),
        (_keep, "aliased", "shares memory with an earlier call's output"),
        (_in_place, "input", "the argument x was changed"),
        (_raises, "raised", "ValueError: no such shape"),
    ],
)
def test_what_a_kernel_may_not_do(make_kernel: MakeKernel, run: Any, kind: str, says: str) -> None:
    definition = KernelDefinition(make_kernel())
    with pytest.raises(Fault) as raised:
        Examination(definition, Candidate(run), seed=3).run()
    assert raised.value.kind == kind
    assert says in str(raised.value)
    assert str(raised.value).startswith("float32, size=7, ")


def test_what_is_right_passes(make_kernel: MakeKernel) -> None:
    examination = Examination(KernelDefinition(make_kernel()), Candidate(lambda x, by: x.contiguous() * by), seed=3)
    examination.run()
    assert examination.error["float32"]["output 0"]["ratio"] == 1.0
    assert examination.error["poisoned"]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (
            "    once.is_alive() or once.start()\n    return x * by",
            "threads: a thread that the kernel",
        ),
        ("    time.perf_counter = lambda: 0.0\n    return x * by", "tampered: time.perf_counter was replaced"),
    ],
)
def test_what_a_kernel_may_not_leave_behind(make_kernel: MakeKernel, kernels_home: Path, run: str, says: str) -> None:
    module = f"{BEFORE}\n\ndef run(x, by):\n{run}\n"
    folder = make_kernel(**{"kernel.yaml": ONLY_PYTHON, "triton/kernel.py": module})
    kernel = accept(KernelDefinition(folder), "triton", interpret=True)
    assert kernel.verdict is Verdict.FAIL, kernel.error
    assert kernel.error["reason"].startswith(says)


def test_without_its_device_a_kernel_is_not_accepted(make_kernel: MakeKernel, kernels_home: Path) -> None:
    definition = KernelDefinition(make_kernel(**{"kernel.yaml": ONLY_PYTHON}))
    interpreted = accept(definition, "triton", interpret=True)
    assert interpreted.verdict is Verdict.INCONCLUSIVE
    assert interpreted.error["reason"] == "right under Triton's interpreter; not run on a device"
    assert interpreted.error["float32"]["output 0"]["ratio"] == 1.0


def test_an_operator_that_cannot_be_traced_is_rejected_by_opcheck(make_kernel: MakeKernel, kernels_home: Path) -> None:
    """Its meta function, the reference, asks for values: right in every call, and of no use in a graph."""
    reference = "def reference(x, by):\n    return (x * by if not x.numel() or x.max() < 1e30 else by * x,)\n"
    folder = make_kernel(**{"kernel.yaml": ONLY_PYTHON, "reference.py": reference})
    kernel = accept(KernelDefinition(folder), "triton", interpret=True)
    assert kernel.verdict is Verdict.FAIL, kernel.error
    assert kernel.error["reason"].startswith("opcheck: float32, size=7: test_faketensor: "), kernel.error["reason"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"inputs.py": INPUTS.replace('{"size": 7}, {"size": 0}, {"size": 1025}', '{"size": 0}')},
            "inputs.py: no case gives",
        ),
        (
            {"reference.py": "def reference(x, by):\n    return x * by, x\n"},
            "reference.py: it gives 2 outputs, and the operator has 1",
        ),
        ({"reference.py": "def refer(x, by):\n    return x\n"}, "reference.py has no function reference"),
        (
            {"reference.py": "def reference(x, by):\n    return x * (1 // 0)\n"},
            "reference.py:2: ZeroDivisionError",
        ),
    ],
)
def test_a_kernel_that_nothing_could_be_held_against_is_not_accepted(
    make_kernel: MakeKernel, files: dict[str, str], reason: str
) -> None:
    """The sentence names the file, and no class of ours."""
    folder = make_kernel(**{"kernel.yaml": ONLY_PYTHON, **files})
    found = accept(KernelDefinition(folder), "triton", interpret=True)
    assert found.verdict is Verdict.FAIL
    assert reason in found.error["reason"]
    assert "day0.errors" not in found.error["reason"]
