"""Kernels with faults that only the device's memory shows, examined across the bridge on the simulated accelerator:
`python -m tests.kernels.bridged FOLDER` prints what became of each."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from day0.device_probe import open_device
from tasks.kernels import load
from tasks.kernels.acceptance.bridge import Bridge, BridgedStream
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


class Queue:
    """A stream of a device that is busy: what is copied on it is there only after it has been waited for."""

    def __init__(self) -> None:
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def behind_work(self) -> Iterator[None]:
        yield
        self.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.copies.append((target, source))

    def wait(self) -> None:
        for target, source in self.copies:
            target.copy_(source)
        self.copies.clear()


queue = Queue()


def elsewhere(x: torch.Tensor, by: float) -> torch.Tensor:
    """Its work is on another stream than the current one, for which it does not wait."""
    return x.contiguous() * by


def honest(x: torch.Tensor, by: float) -> torch.Tensor:
    queue.wait()
    return x.contiguous() * by


KERNELS: tuple[Callable[..., Any], ...] = (
    honest, unwritten, in_place, itself, overwritten, by_address, on_the_cpu, put_off, afterwards, elsewhere
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
            stream = BridgedStream(bridge, queue)
            Examination(definition, candidate, seed=3, poison=bridge.poison, stream=stream).run()
        bridge.finish()
    except Fault as fault:
        return f"{fault.kind}: {fault}"
    return "accepted"


def main(root: Path) -> None:
    open_device("simulated", ["tasks.operators.simulated.start"])
    print(json.dumps({path.name: tried(path) for path in sorted(root.iterdir())}))


if __name__ == "__main__":
    # The kernels import this module by its name, and what it holds is then that one's.
    importlib.import_module("tests.kernels.bridged").main(Path(sys.argv[1]))
