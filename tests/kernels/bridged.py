"""Kernels with faults that only the device's memory shows, examined across the bridge on the simulated accelerator:
`python -m tests.kernels.bridged FOLDER` prints what became of each."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from day0.device_probe import open_device
from tasks.kernels import load
from tasks.kernels.acceptance.bridge import Bridge
from tasks.kernels.acceptance.examine import Candidate, Examination
from tasks.kernels.acceptance.faults import Fault
from tasks.kernels.definition import KernelDefinition

kept: dict[Any, torch.Tensor] = {}
late: list[tuple[torch.Tensor, torch.Tensor]] = []


def unwritten(x: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty(x.shape, device=x.device)
    if len(x) > 1:
        out[:-1].copy_(x[:-1] * by)
    return out


def in_place(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.mul_(by).clone()


def itself(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.mul_(by)


def overwritten(x: torch.Tensor, by: float) -> torch.Tensor:
    out = kept.setdefault(tuple(x.shape), torch.empty(x.shape, device=x.device))
    return out.copy_(x * by)


def by_address(x: torch.Tensor, by: float) -> torch.Tensor:
    """Its result is kept by the address of its argument."""
    key = x.raw.data_ptr(), tuple(x.shape)  # type: ignore[attr-defined]
    return kept.setdefault(key, x * by).clone()


def on_the_cpu(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.cpu() * by


def put_off(x: torch.Tensor, by: float) -> torch.Tensor:
    """The work of a call is done at the next one."""
    for target, source in late:
        target.copy_(source)
    late[:] = [(torch.empty(x.shape, device=x.device), x * by)]
    return late[0][0]


def afterwards(x: torch.Tensor, by: float) -> torch.Tensor:
    """The result is written again a moment later."""
    out = x * by
    threading.Timer(0.02, lambda: out.copy_(x * by)).start()
    return out


def honest(x: torch.Tensor, by: float) -> torch.Tensor:
    return x.contiguous() * by


KERNELS: tuple[Callable[..., Any], ...] = (
    honest, unwritten, in_place, itself, overwritten, by_address, on_the_cpu, put_off, afterwards
)  # fmt: skip


def tried(folder: Path) -> str:
    """What the examination of this folder's kernel says."""
    definition = KernelDefinition(folder)
    load.load(definition, "triton", None, "PrivateUse1")
    bridge = Bridge(definition, "simulated")
    assert bridge.poison.works
    candidate = Candidate(load.operator(definition))
    try:
        if folder.name == afterwards.__name__:
            candidate.call(torch.ones(7), 2.5)
        else:
            Examination(definition, candidate, seed=3, poison=bridge.poison).run()
        bridge.finish()
    except Fault as fault:
        return f"{fault.kind}: {fault}"
    return "accepted"


if __name__ == "__main__":
    open_device("simulated", ["tasks.operators.simulated.start"])
    print(json.dumps({path.name: tried(path) for path in sorted(Path(sys.argv[1]).iterdir())}))
