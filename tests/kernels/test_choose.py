"""The fastest accepted backend of one run is used; who cheats while it is timed is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.kernels import Kernel
from day0.target_operators import Device
from day0.verdict import Verdict
from tasks.kernels.definition import KernelDefinition
from tasks.kernels.providers.choose import best, marked
from tests.kernels.conftest import KERNEL_YAML, MakeKernel

CPU = Device("cpu", "CPU")


def kernel(backend: str, eager: float | None = None, run: str | None = "one", **more: Any) -> Kernel:
    speedup = {} if eager is None else {"eager": eager, "run": run}
    known: dict[str, Any] = {"name": "scale", "verdict": Verdict.PASS, "error": {}, "roofline": None, "digest": "0"}
    return Kernel(**{**known, "backend": backend, "speedup": speedup, **more})


def chosen(*kernels: Kernel) -> dict[str, str | None]:
    return {k.backend: k.chosen for k in best(kernels)}


def test_the_fastest_of_one_run() -> None:
    found = chosen(kernel("hub", 2.0), kernel("flaggems", 3.0), kernel("triton", 2.5))
    assert found == {"flaggems": "3.00 times as fast as eager, in the same run hub 2.00, triton 2.50"}


def test_of_nearly_equal_ones_the_targets_order_decides() -> None:
    assert set(chosen(kernel("hub", 3.0), kernel("triton", 2.99))) == {"triton"}


def test_times_of_different_runs_are_not_compared() -> None:
    others = [kernel("triton"), kernel("triton", 1.0, run="another"), kernel("triton", 1.0, run=None)]
    for other in others:
        found = chosen(kernel("hub", 9.0), other)
        assert found == {"triton": "the most wanted of the target's; day0 kernels bench times them side by side"}


def test_only_what_is_accepted_is_used() -> None:
    rejected = kernel("triton", 9.0, verdict=Verdict.FAIL)
    assert chosen(kernel("hub", 1.0), rejected) == {"hub": "the only accepted one"}
    assert chosen(rejected, kernel("hub", verdict=Verdict.INCONCLUSIVE)) == {}
    assert [k.chosen for k in marked([rejected, kernel("hub")])] == [None, "the only accepted one"]


def test_one_of_each_kernel() -> None:
    found = best([kernel("hub"), kernel("cpu"), kernel("cpu", name="other")])
    assert [(k.name, k.backend) for k in found] == [("scale", "cpu"), ("other", "cpu")]


PYTHON = KERNEL_YAML[: KERNEL_YAML.index("  cpu:")] + "  triton: {module: triton/kernel.py}\n"
BOTH = PYTHON + "  flaggems: {module: flaggems.py, package: torch}\n"
INPUTS = """
import torch

CASES = [{"size": 7}, {"size": 4096, "bench": True}]


def make(case, dtype, generator, device):
    return torch.randn(case["size"], generator=generator, device=device).to(dtype), 2.5
"""
ADAPTER = "def declines(x, by):\n    return ''\n\n\n"
SLOW = ADAPTER + "import time\n\n\ndef run(x, by):\n    time.sleep(0.02)\n    return x * by\n"

#: Cheats that acceptance need not see, since they begin once it is over or only count calls; and what catches them.
CHEATS = {
    # The output of the first call with these sizes, computed once.
    "cached by size": (
        "KEPT = {}\n\n\ndef run(x, by):\n    return KEPT.setdefault(x.numel(), x * by).clone()\n",
        "error: float32, size=4096, while it is timed",
    ),
    # The same addresses hold other values.
    "cached by address": (
        "KEPT = {}\n\n\ndef run(x, by):\n    return KEPT.setdefault(x.data_ptr(), x * by).clone()\n",
        "error: float32, size=4096, while it is timed",
    ),
    # Right until it is thought to be timed.
    "right at first": (
        "CALLS = []\n\n\ndef run(x, by):\n    CALLS.append(1)\n"
        "    return x * by if len(CALLS) < 3 else KEPT\n\n\nimport torch\n\nKEPT = torch.zeros(4096)\n",
        "error: float32, size=4096, while it is timed",
    ),
    "a clock that stands still": (
        "import time\n\n\ndef run(x, by):\n    time.perf_counter = lambda: 0.0\n    return x * by\n",
        "tampered: time.perf_counter was replaced",
    ),
    "a comparison that is always true": (
        "import tasks.kernels.acceptance.errors as errors\n\n\ndef run(x, by):\n"
        "    errors.compare_chunks = lambda *args, **more: None\n    return x * 0\n",
        "tampered: tasks.kernels.acceptance.errors.compare_chunks was replaced",
    ),
    "an error": ("def run(x, by):\n    raise ValueError('no')\n", "raised: ValueError: no"),
    "another form": ("def run(x, by):\n    return x[:1] * by\n", "structure"),
}


@pytest.mark.reference
def test_backends_are_timed_in_one_run(make_kernel: MakeKernel, kernels_home: Path) -> None:
    from tasks.kernels.timing import bench_all

    definition = KernelDefinition(make_kernel(**{"kernel.yaml": BOTH, "inputs.py": INPUTS, "flaggems.py": SLOW}))
    rejected = kernel("cpu", verdict=Verdict.FAIL)
    timed = bench_all(
        [kernel("flaggems"), kernel("triton"), rejected], definition, device=CPU, repeats=2, compiled=False
    )
    assert timed[2] == rejected
    assert timed[0].speedup["run"] == timed[1].speedup["run"]
    assert [case["case"] for case in timed[0].speedup["cases"]] == ["size=4096"]
    assert all(case["kernel"] > 0.02 for case in timed[0].speedup["cases"])
    assert [k.backend for k in best(timed)] == ["triton"]


@pytest.mark.reference
@pytest.mark.parametrize("cheat", CHEATS)
def test_who_cheats_while_it_is_timed_is_rejected(make_kernel: MakeKernel, kernels_home: Path, cheat: str) -> None:
    from tasks.kernels.timing import bench_all

    source, says = CHEATS[cheat]
    definition = KernelDefinition(
        make_kernel(**{"kernel.yaml": BOTH, "inputs.py": INPUTS, "flaggems.py": ADAPTER + source})
    )
    both = bench_all([kernel("flaggems"), kernel("triton")], definition, device=CPU, repeats=2, compiled=False)
    assert both[0].verdict is Verdict.FAIL
    assert both[0].error["reason"].startswith(f"while it was timed: {says}"), both[0].error
    assert both[1].verdict is Verdict.PASS
    assert both[1].speedup["eager"] > 0
