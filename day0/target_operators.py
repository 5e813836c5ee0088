"""What a target's torch is like: its operators, its device, and the kernels that it can run.

configs/operators/NAME.yaml, which several targets share. The operator scan and the kernels stage both read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, Self

from pydantic import Field, PositiveFloat, field_validator, model_validator

from day0.artifacts.base import Frozen
from day0.config import named_config
from day0.home import configs
from day0.target import Target, load_target

_LISTED = re.compile(r"\w+::\w+(\.(\w+|\*))?")
_DEVICE = re.compile(r"[a-z]\w*(:\d+)?")


@dataclass(frozen=True)
class Device:
    """A device as torch knows it (see day0/devices.py for whether it is here)."""

    name: str
    """Such as cpu, cuda, npu or musa."""
    key: str
    """Its dispatch key, such as CPU, CUDA or PrivateUse1."""
    modules: tuple[str, ...] = ()
    """Imported first: they bring it."""
    torch_build: str | None = None
    torch_plugin: str | None = None
    """As in TargetOperators: cuda is also what other vendors' devices are called, and PrivateUse1 is any vendor's."""
    architecture: str | None = None
    """What its compilers call it, such as sm_90: the target's. None: not known here, or no GPU."""


class TargetOperators(Frozen):
    """How to tell which operators a target has: configs/operators/NAME.yaml."""

    dispatch_key: str | None = None
    """torch's name of the backend, such as CPU or CUDA: what is registered for it is asked of the torch installed."""
    device: str | None = None
    """torch's name of the device itself, such as cpu, cuda or npu: where operators are measured and kernels tried."""
    modules: tuple[str, ...] = ()
    """Imported first: they bring the device to torch, such as torch_npu."""
    kernels: tuple[str, ...] = ()
    """The backends of kernels that the target can run, the most wanted last (see kernels/README.md)."""
    torch_build: str | None = None
    """A regular expression for the version of a torch that is the target's own; others are not asked."""
    torch_plugin: str | None = None
    """The package without which the installed torch is not the target's."""
    lists: tuple[str, ...] = ()
    """Names of files in configs/operators/lists/."""
    operators: tuple[str, ...] = ()
    """A list in place: overloads as torch prints them (`aten::mul.Tensor`); `aten::mul.*` is every overload."""
    complete: bool = True
    """What no list names is not there. False: it is not known."""
    fallback: Literal["CPU"] | None = None
    """Where the backend runs an operator that it lacks."""
    graph_capture: str | None = None
    """What says that a graph with such an operator cannot be captured; left out where that is not known."""
    flops_per_byte: PositiveFloat | None = None
    """FLOPs that the target computes in the time it moves one byte; weighs the two in an operator's share. Only
    where the target's own config gives no rates."""
    source: str = Field(min_length=1)
    """Where the list, or the way of asking, is from; where there is no list, what was looked for."""

    @field_validator("operators")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((name for name in names if not _LISTED.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(
                f"{wrong!r} is not an operator's name; write it as aten::mul.Tensor, aten::mm or aten::mul.*"
            )
        return names

    @field_validator("device")
    @classmethod
    def _device(cls, device: str | None) -> str | None:
        if device is not None and not _DEVICE.fullmatch(device):
            raise ValueError(f"{device!r} is no device of torch; write it as cuda, or as cuda:1 for the second one")
        return device

    @field_validator("modules")
    @classmethod
    def _modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((name for name in modules if not all(part.isidentifier() for part in name.split("."))), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is not the name of a Python module; write it as torch_npu")
        return modules

    @field_validator("torch_build")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _tells(self) -> Self:
        if self.dispatch_key is None and not self.lists and not self.operators:
            raise ValueError("needs dispatch_key, lists or operators: without any, nothing can be told")
        if self.device is not None and self.dispatch_key is None:
            raise ValueError("a device needs its dispatch_key too: kernels are registered for it")
        return self

    def as_device(self) -> Device | None:
        """The target's device; None where torch's name of it is not known."""
        if self.device is None or self.dispatch_key is None:
            return None
        return Device(self.device, self.dispatch_key, self.modules, self.torch_build, self.torch_plugin)


def operators_of(target: Target) -> TargetOperators:
    """The file that a target names by `operators`.

    Raises:
        InputError: there is no such file, or it is malformed.
    """
    return named_config(configs() / "operators", target.operators, TargetOperators)


def device_of(target: str) -> Device | None:
    """The device of configs/targets/TARGET.yaml; None where torch's name of it is not known.

    Raises:
        InputError: there is no such target, or a file is malformed.
    """
    known = load_target(target)
    device = operators_of(known).as_device()
    return replace(device, architecture=known.architecture.name) if device and known.architecture else device
