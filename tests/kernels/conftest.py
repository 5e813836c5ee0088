"""Kernels of the tests: small ones that are compiled in a moment, without torch's headers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

KERNEL_YAML = """
name: scale
what: Multiplies a tensor by a number, element by element.
operator: "scale(Tensor x, float by) -> Tensor"
replaces: [aten::mul.Scalar]
dtypes: [float32]
tolerance: {float32: {ratio: 2, atol: 0, reason: each rounds once}}
bytes: 2 * size * element
flops: size
backends:
  cpu: {sources: [cpu/kernel.cpp], flags: [-O1]}
  triton: {module: triton/kernel.py}
"""
REFERENCE = "def reference(x, by):\n    return (x * by,)\n"
INPUTS = """
import torch

CASES = [{"size": 7}, {"size": 0}, {"size": 1025}, {"size": 64, "bench": True}]


def make(case, dtype, generator, device):
    return torch.randn(case["size"], generator=generator, device=device).to(dtype), 2.5
"""

MakeKernel = Callable[..., Path]


@pytest.fixture
def make_kernel(tmp_path: Path) -> MakeKernel:
    """A kernel's folder, `scale`, with some of its files replaced."""

    def make(**files: str) -> Path:
        folder = tmp_path / "kernels" / "scale"
        content = {
            "kernel.yaml": KERNEL_YAML,
            "reference.py": REFERENCE,
            "inputs.py": INPUTS,
            "cpu/kernel.cpp": 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n',
            "triton/kernel.py": "AHEAD = []\n\n\ndef run(x, by):\n    return x * by\n",
        }
        for name, text in {**content, **{key.replace("__", "/"): value for key, value in files.items()}}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return make


@pytest.fixture
def kernels_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DAY0_HOME of the test's own."""
    home = tmp_path / "home"
    monkeypatch.setenv("DAY0_HOME", str(home))
    return home
