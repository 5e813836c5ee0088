"""Whether a device is here: asked in a process of its own, whose death or silence is an answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from day0 import devices
from day0.deadline import Deadline
from day0.devices import DeviceAbsent, hardware, other_torch
from day0.errors import StageTimeout
from day0.target_operators import Device

SIMULATED = Device("simulated", "PrivateUse1", ("tasks.operators.simulated.start",))


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (Device("cuda", "CUDA", torch_build=r"\+nobodys"), "is not the target's"),
        (Device("npu", "PrivateUse1", ("torch_nothing",)), "torch_nothing, which brings npu, is not installed here"),
        (Device("npu", "PrivateUse1", torch_plugin="torch-nothing"), "torch-nothing is not installed here"),
    ],
)
def test_what_is_lacking_is_named(device: Device, says: str) -> None:
    with pytest.raises(DeviceAbsent, match=says):
        hardware(device)


def test_another_vendors_torch_is_not_the_targets() -> None:
    assert other_torch(r"\+rocm", None, "2.13.0+cu130") == "the torch installed here (2.13.0+cu130) is not the target's"
    assert other_torch(r"\+rocm", None, "2.13.0+rocm7") is None
    assert other_torch(None, None, "2.13.0+cpu") is None


@pytest.mark.reference
def test_a_device_that_is_here_says_its_name() -> None:
    assert hardware(SIMULATED) == "simulated accelerator"
    assert hardware(Device("cpu", "CPU"))
    assert "torch" not in vars(devices)


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of a vendor that day0 and its processes find."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_vendor", raising=False)
    return tmp_path / "torch_vendor.py"


@pytest.mark.reference
@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import os; print('driver too old', flush=True); os.abort()", "no vendor here: driver too old"),
        ("raise OSError('libvendor.so.1: no such file')", r"no vendor here: OSError: libvendor\.so\.1"),
        ("", "no vendor here: RuntimeError: "),
    ],
)
def test_a_broken_driver_is_a_device_that_is_not_here(vendor: Path, module: str, says: str) -> None:
    vendor.write_text(module)
    with pytest.raises(DeviceAbsent, match=says):
        hardware(Device("vendor", "PrivateUse1", ("torch_vendor",)))


def test_a_device_that_does_not_open_is_not_here_and_the_stage_s_time_counts(
    vendor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.write_text("import time; time.sleep(600)")
    device = Device("vendor", "PrivateUse1", ("torch_vendor",))
    monkeypatch.setattr(devices, "LIMIT", 0.5)
    with pytest.raises(DeviceAbsent, match=r"did not open in 0\.5 s"):
        hardware(device)
    monkeypatch.setattr(devices, "LIMIT", 60.0)
    with Deadline("operators", 0.5).running(), pytest.raises(StageTimeout, match="operators took longer"):
        hardware(device)
