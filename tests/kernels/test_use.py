"""From what an accelerator lacks to a model that runs on it: scan, measure, gaps, kernels, use, all for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.kernels import Kernel
from day0.kernel_uses import KernelUse, judge_uses
from day0.target_operators import TargetOperators
from day0.verdict import Verdict
from tasks.kernels import gaps
from tasks.kernels.acceptance.records import Answer, Request
from tasks.kernels.acceptance.run import run_worker, verdict
from tasks.kernels.definition import KernelDefinition
from tasks.operators.measure import measure
from tasks.operators.scan import judge, run_capture
from tasks.operators.settings import OperatorSettings
from tests.kernels.composed import KERNELS, write_kernels
from tests.operators.test_measure import CONFIG, SIMULATED

LACKING = {"missing": ["aten::silu.*", "aten::rsqrt.*", "aten::neg.*"], "wrong": {"aten::mean.*": "scaled"}}
OPERATORS = {"aten::silu", "aten::rsqrt", "aten::neg", "aten::mean.dim"}


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device of every process of this test."""
    file = tmp_path / "faults.json"
    file.write_text(json.dumps(LACKING))
    monkeypatch.setenv("DAY0_SIMULATED", str(file))
    return file


def accepted(definition: KernelDefinition, backend: str) -> Kernel:
    """The acceptance's own process, on the CPU: these kernels are torch, and run anywhere."""
    request = Request(
        folder=str(definition.folder), backend=backend, library=None, device="cpu", key="CPU", seed=1, largest=1 << 20
    )
    answer, died = run_worker("tasks.kernels.acceptance.worker", request.to_json(), 300)
    assert answer is not None, died
    found = Answer.model_validate(answer)
    passed = Verdict.FAIL if found.fault else Verdict.PASS
    return verdict(definition, backend, passed, found.fault or "", found.error)


def rehearse(folder: Path, kernels: Path, used: list[Any]) -> tuple[dict[str, Any], str]:
    """The model's run on the device with kernels in use, and what was logged."""
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.rehearsal", str(config), str(kernels), json.dumps(used)],
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.reference
@pytest.mark.compiler
@pytest.mark.timeout(900)
def test_a_model_comes_up_on_an_accelerator_that_lacks_four_of_its_operators(
    tmp_path: Path, faults: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = write_kernels(tmp_path / "kernels")
    before, _ = rehearse(tmp_path, kernels, [])
    assert "Could not run 'aten::" in before["raised"]

    operators = TargetOperators(dispatch_key="PrivateUse1", torch_plugin="none-is-here", source="measured here")
    settings = OperatorSettings(target="simulated", operators=operators, prompt=16, context=16)
    measured = measure(CONFIG, "simulated", modules=(SIMULATED,)).measured
    report = judge(CONFIG, settings, run_capture(CONFIG, settings), measured.values())
    found = {gap.name: gap.status for gap in report.gaps if gap.status in ("missing", "fallback")}
    assert found == dict.fromkeys(OPERATORS, "missing")
    coverage = next(check for check in report.checks if check.name == "coverage")
    assert all(name in coverage.reason for name in OPERATORS)

    offers = {name: KernelDefinition(kernels / name) for name in KERNELS}
    monkeypatch.setattr(gaps, "offered", lambda target: tuple((d, "triton") for d in offers.values()))
    monkeypatch.setattr(gaps, "accepted", accepted)
    bundle = gaps.fill_gaps(report)
    assert bundle.unmet == ()
    assert {kernel.name for kernel in bundle.kernels if kernel.verdict is Verdict.PASS} == set(KERNELS)

    used = [[k.name, o, measured[o].wrong] for k in bundle.kernels for o in offers[k.name].file.replaces]
    after, _ = rehearse(tmp_path, kernels, used)
    assert after["error"] < 1e-5
    assert after["tokens"] == 20
    check = judge_uses(tuple(KernelUse.model_validate(use) for use in after["uses"]))
    assert check.verdict is Verdict.PASS
    assert all(name in check.reason for name in OPERATORS)


@pytest.mark.reference
@pytest.mark.compiler
def test_a_kernel_that_fails_is_fallen_back_from_and_logged(tmp_path: Path, faults: Path) -> None:
    kernels = write_kernels(tmp_path / "kernels")
    for name in ("silu", "mean"):
        file = kernels / name / "triton" / "kernel.py"
        file.write_text(
            file.read_text().replace("    return", "    raise RuntimeError('no such block size')\n    return")
        )
    used = [[name, kernel.replaces, name == "mean"] for name, kernel in KERNELS.items()]
    result, log = rehearse(tmp_path, kernels, used)
    assert result["error"] < 1e-5
    uses = {use["kernel"]: KernelUse.model_validate(use) for use in result["uses"]}
    for name in ("silu", "mean"):
        assert (uses[name].calls, uses[name].reason) == (0, "RuntimeError: no such block size")
        assert uses[name].fallbacks > 0
        assert log.count(f"follow-up: kernel {name} failed for {KERNELS[name].replaces}") == 1
    assert uses["rsqrt"].calls > 0
    check = judge_uses(tuple(uses.values()))
    assert check.verdict is Verdict.FAIL
    assert "no such block size" in check.reason
