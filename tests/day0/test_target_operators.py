"""A target's device, as torch knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from day0.home import PROJECT
from day0.target_operators import Device, device_of
from tasks.kernels.gaps import offered

TARGETS = sorted(path.stem for path in (PROJECT / "configs/targets").glob("*.yaml"))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_a_device_and_kernels_that_day0_knows(target: str) -> None:
    assert device_of(target) is not None
    offered(target)


def test_the_device_is_named_as_torch_does() -> None:
    assert device_of("cpu") == Device("cpu", "CPU")
    assert device_of("mi300x") == Device("cuda", "CUDA", torch_build=r"\+rocm", architecture="gfx942")
    assert device_of("ascend-910b") == Device("npu", "PrivateUse1", ("torch_npu",), torch_plugin="torch_npu")


def test_a_device_that_nobody_knows_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "operators").mkdir()
    (tmp_path / "targets").mkdir()
    text = (PROJECT / "configs/targets/cpu.yaml").read_text()
    (tmp_path / "targets" / "new.yaml").write_text(text.replace("operators: cpu", "operators: new"))
    (tmp_path / "operators" / "new.yaml").write_text("operators: ['aten::mm']\nsource: a test\n")
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path))
    assert device_of("new") is None
