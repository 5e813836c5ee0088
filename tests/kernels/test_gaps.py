"""The kernels stage: skipped where nothing is missing, else it names what is not met."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from day0.artifacts.kernels import Kernel
from day0.artifacts.operators import Measurement
from day0.errors import InputError
from day0.home import PROJECT
from day0.target_operators import Device, device_of
from day0.verdict import Verdict
from flows.commands.kernels import command
from tasks.kernels import build as building
from tasks.kernels import gaps
from tasks.kernels.acceptance.run import verdict
from tasks.kernels.actions import act
from tasks.kernels.build import BuildFailed, Built
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.find import find_kernel
from tasks.kernels.gaps import fill_gaps, offered
from tasks.operators.evidence import Evidence
from tasks.operators.records import Measured
from tasks.operators.scan import judge
from tests.operators.captures import SOFTMAX, dispatcher, listed, make_capture, settings


def test_no_gaps_is_skipped_and_says_so() -> None:
    bundle = fill_gaps(judge({}, settings(dispatcher(), "cpu"), make_capture()))
    assert bundle.verdict is Verdict.SKIPPED
    assert bundle.reason == "cpu lacks none of the 6 operators that the model calls"


def test_gaps_fail_by_name() -> None:
    has = listed("aten::mm", "aten::bmm", "aten::view", *SOFTMAX, fallback="CPU")
    report = judge({}, settings(has, "gaudi3"), make_capture())
    bundle = fill_gaps(report)
    assert bundle.verdict is Verdict.FAIL
    assert set(bundle.unmet) == {"aten::mul.Tensor", "aten::isin.Tensor_Tensor"}
    assert "aten::isin.Tensor_Tensor (fallback)" in bundle.reason


def test_an_operator_scan_that_concluded_nothing_is_no_reason_to_skip() -> None:
    for capture in (make_capture(phases={}), make_capture(key_readable=False, registrations={})):
        bundle = fill_gaps(judge({}, settings(dispatcher("CUDA")), capture))
        assert bundle.verdict is Verdict.INCONCLUSIVE


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path))
    result = CliRunner().invoke(command, ["list", "--target", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    kernels = {kernel["name"]: kernel for kernel in json.loads(result.stdout)["kernels"]}
    assert kernels["fused_add_rms_norm"]["backend"] == "cpu"
    # Nothing is claimed of a kernel that was not tried.
    assert {kernel["verdict"] for kernel in kernels.values()} == {"inconclusive"}
    wrong = CliRunner().invoke(command, ["list", "rotry", "--target", "cpu", "--json"])
    assert wrong.exit_code == 2
    assert "did you mean 'rotary'" in json.loads(wrong.stdout)["error"]
    assert CliRunner().invoke(command, ["list", "--target", "cpv", "--json"]).exit_code == 2
    monkeypatch.setenv("CXX", "no-such-compiler")
    absent = CliRunner().invoke(command, ["build", "rotary", "--target", "cpu", "--json"])
    assert absent.exit_code == 4
    assert "install a C++ compiler" in json.loads(absent.stdout)["error"]


def test_a_backend_that_kernels_do_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("operators", "targets"):
        shutil.copytree(PROJECT / "configs" / folder, tmp_path / folder)
    file = tmp_path / "operators" / "gaudi.yaml"
    file.write_text(file.read_text().replace("kernels: []", "kernels: [tpc]"))
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path))
    with pytest.raises(InputError, match=r"gaudi\.yaml: kernels: 'tpc' is none of cpu, "):
        offered("gaudi3")


def test_what_is_wrong_is_a_gap_and_what_is_slow_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def tried(definition: KernelDefinition, backend: str, device: Device | None) -> Kernel:
        assert device == device_of("cpu")
        called.append(definition.name)
        return verdict(definition, backend, Verdict.FAIL if definition.name == "rotary" else Verdict.PASS, "a reason")

    names = {"gated_activation": "aten::mul.Tensor", "fused_add_rms_norm": "aten::mm", "rotary": "aten::view"}
    monkeypatch.setattr(gaps, "tried", tried)
    monkeypatch.setattr(gaps, "offered", lambda _: tuple((_replacing(n, its), "cpu") for n, its in names.items()))
    measured = (
        Measured(overload="aten::mm", works=False, wrong=True),
        Measured(overload="aten::mul.Tensor", works=True, slow=True),
        Measured(overload="aten::view", works=True, slow=True),
    )
    report = judge({}, settings(dispatcher(), "cpu"), make_capture(), Evidence(Measurement(), measured))
    bundle = fill_gaps(report)
    assert called == ["fused_add_rms_norm", "gated_activation", "rotary"]  # gaps first
    assert bundle.verdict is Verdict.PASS
    assert bundle.unmet == ()
    assert bundle.reason == (
        "all 1 operators that cpu lacks have an accepted kernel: aten::mm (wrong): fused_add_rms_norm for cpu; "
        "accepted also for what is slow there: aten::mul.Tensor (gated_activation for cpu)"
    )


def _replacing(name: str, operator: str) -> KernelDefinition:
    definition = find_kernel(name)
    definition.file = definition.file.model_copy(update={"replaces": (operator,)})
    return definition


def test_cuda_is_compiled_for_the_targets_gpu_alone(monkeypatch: pytest.MonkeyPatch, kernels_home: Path) -> None:
    """Whichever action compiles it: accept, bench, export and what an engine is given ask for the same library."""
    asked: list[tuple[str, str | None]] = []

    def build(definition: KernelDefinition, backend: str, architecture: str | None = None) -> Built:
        asked.append((backend, architecture))
        raise BuildFailed("no compiler is called in this test")

    monkeypatch.setattr(building, "build", build)
    kernels, _ = act("accept", ("fused_add_rms_norm",), "b200")
    assert asked == [("cuda", "sm_100")]
    assert {k.backend: k.verdict for k in kernels}["cuda"] is Verdict.FAIL
    with pytest.raises(BuildFailed):
        building.library_of(find_kernel("fused_add_rms_norm"), "cpu", device_of("b200"))
    assert asked[1:] == [("cpu", None)]
