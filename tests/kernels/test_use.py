"""From what an accelerator lacks to a model that runs on it: scan, measure, gaps, kernels, use, all for real.

The accelerator is simulated (tasks/operators/simulated/): each process of a test has a device of torch whose faults a
file names. Beside that file there are a target's configs, and kernels, as there would be for any other accelerator.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.operators import OperatorReport
from day0.home import PROJECT
from day0.kernel_uses import KernelUse, judge_uses
from day0.target import load_target
from day0.verdict import Verdict
from flows.commands.operators import command
from tasks.kernels.gaps import fill_gaps
from tasks.operators.scan import scan
from tasks.operators.settings import operator_settings
from tests.kernels.composed import KERNELS, write_kernels
from tests.operators.test_measure import CONFIG

LACKING = {"missing": ["aten::silu.*", "aten::rsqrt.*", "aten::neg.*"], "wrong": {"aten::mean.*": "scaled"}}
OPERATORS = {"aten::silu": "missing", "aten::rsqrt": "missing", "aten::neg": "missing", "aten::mean.dim": "wrong"}

pytestmark = [pytest.mark.reference, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, kernels: Path) -> Any:
    """A machine with the accelerator, its target and its kernels; `environment` is that of all processes."""
    root = tmp_path_factory.mktemp("machine")
    shutil.copytree(PROJECT / "configs", root / "configs")
    shutil.copytree(PROJECT / "tests/data/simulated", root / "configs", dirs_exist_ok=True)
    (root / "faults.json").write_text(json.dumps(LACKING))
    (root / "config.json").write_text(json.dumps(CONFIG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAY0_HOME", str(root / "home"))
        patch.setenv("DAY0_CONFIGS", str(root / "configs"))
        patch.setenv("DAY0_KERNELS", str(kernels))
        patch.setenv("DAY0_SIMULATED", str(root / "faults.json"))
        yield root


@pytest.fixture(scope="module")
def report(machine: Path) -> OperatorReport:
    return scan(CONFIG, operator_settings("simulated", load_target("simulated"), prompt=16, context=16))


@pytest.fixture(scope="module")
def bundle(report: OperatorReport) -> KernelBundle:
    return fill_gaps(report)


def rehearse(machine: Path, *found: OperatorReport | KernelBundle) -> tuple[dict[str, Any], str]:
    """The model's run on the device, with kernels in use, and what was logged."""
    files = []
    for artifact in found:
        files.append(machine / f"{artifact.kind}.json")
        files[-1].write_text(json.dumps(artifact.to_json()))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.rehearsal", str(machine / "config.json"), *map(str, files)],
        cwd=PROJECT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_without_kernels_the_model_does_not_run(machine: Path) -> None:
    before, _ = rehearse(machine)
    assert "Could not run 'aten::" in before["raised"]


def test_the_scan_finds_what_is_missing_and_what_is_wrong_by_running_it(report: OperatorReport) -> None:
    assert {gap.name: gap.measured for gap in report.gaps} == {
        name: "wrong" if what == "wrong" else "does not run" for name, what in OPERATORS.items()
    }
    assert {gap.status for gap in report.gaps} == {"missing"}
    assert (report.measurement.device, report.measurement.hardware) == ("simulated", "simulated accelerator")
    assert report.measurement.outcomes["aten::mm"] == "works"
    coverage = next(check for check in report.checks if check.name == "coverage")
    assert "computed wrongly: aten::mean.dim; missing: " in coverage.reason
    measured = next(check for check in report.checks if check.name == "measured")
    for check in (coverage, measured):
        assert check.verdict is Verdict.PASS
        assert all(name in check.reason for name in OPERATORS)


def test_the_stage_accepts_a_kernel_for_each_on_the_device(report: OperatorReport, bundle: KernelBundle) -> None:
    assert bundle.unmet == ()
    assert {kernel.name for kernel in bundle.kernels if kernel.verdict is Verdict.PASS} == set(KERNELS)
    for kernel in bundle.kernels:
        assert kernel.error["device"] == "simulated accelerator"
        assert kernel.error["poisoned"]
    assert bundle.verdict is Verdict.PASS
    assert bundle.reason.startswith("all 4 operators that simulated lacks have an accepted kernel: ")
    for name, what in OPERATORS.items():
        assert f"{name} ({what}): " in bundle.reason
    again = fill_gaps(report)  # found again by the device's key, not tried again
    assert [kernel.error["seed"] for kernel in again.kernels] == [kernel.error["seed"] for kernel in bundle.kernels]


def test_then_the_model_comes_up_with_them(machine: Path, report: OperatorReport, bundle: KernelBundle) -> None:
    after, _ = rehearse(machine, report, bundle)
    assert after["error"] < 1e-5
    assert after["tokens"] == 20
    check = judge_uses(tuple(KernelUse.model_validate(use) for use in after["uses"]))
    assert check.verdict is Verdict.PASS
    assert all(name in check.reason for name in OPERATORS)


def test_a_kernel_that_fails_is_fallen_back_from_and_logged(
    machine: Path, report: OperatorReport, bundle: KernelBundle, kernels: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    broken = shutil.copytree(kernels, tmp_path / "kernels")
    for name in ("silu", "mean"):
        file = broken / name / "triton" / "kernel.py"
        file.write_text(
            file.read_text().replace("    return", "    raise RuntimeError('no such block size')\n    return")
        )
    monkeypatch.setenv("DAY0_KERNELS", str(broken))
    result, log = rehearse(machine, report, bundle)
    assert result["error"] < 1e-5
    uses = {use["kernel"]: KernelUse.model_validate(use) for use in result["uses"]}
    for name in ("silu", "mean"):
        assert (uses[name].calls, uses[name].reason) == (0, "RuntimeError: no such block size")
        assert uses[name].fallbacks > 0
        said = f"follow-up: kernel {name} for {KERNELS[name].replaces}: RuntimeError: no such block size"
        assert log.count(said) == 1
    assert uses["rsqrt"].calls > 0
    check = judge_uses(tuple(uses.values()))
    assert check.verdict is Verdict.FAIL
    assert "no such block size" in check.reason


def test_the_command_can_leave_it(machine: Path) -> None:
    options = [str(machine / "config.json"), "--target", "simulated", "--prompt", "16", "--context", "16", "--json"]
    found = json.loads(CliRunner().invoke(command, [*options, "--no-measure"]).stdout)
    assert found["measurement"]["why_not"] == "it was not asked for"
    assert found["measurement"]["outcomes"] == {}
    assert {operator["measured"] for phase in found["phases"].values() for operator in phase["operators"]} == {None}


LARGER = """
import sys, torch
from pathlib import Path
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.dispatch import Dispatch
dispatch = Dispatch("CPU")
dispatch.use(KernelDefinition(Path(sys.argv[1]) / "silu"), "triton", "aten::silu", elements=8)
for count in (8, 9):
    x = torch.randn(count)
    assert torch.allclose(torch.nn.functional.silu(x), x * x.sigmoid())
use, = dispatch.uses
print(use.calls, use.declined, use.fallbacks)
"""


def test_a_larger_tensor_than_a_kernel_was_accepted_on_goes_to_what_was_there(tmp_path: Path) -> None:
    kernels = write_kernels(tmp_path / "kernels", ("silu",))
    done = subprocess.run(
        [sys.executable, "-c", LARGER, str(kernels)], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "1 1 0\n", done.stderr
