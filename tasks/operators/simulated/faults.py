"""What is amiss with a simulated accelerator, as a file that a process can be given."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from day0.artifacts.base import Frozen

Wrong = Literal["scaled", "tail", "strides"]
"""`scaled`: each value is 1 % too large. `tail`: the last of each row is not computed. `strides`: operands are read as
though they were contiguous."""

Name = Annotated[str, Field(pattern=r"^aten::\w+(\.(\w+|\*))?$")]


class Faults(Frozen):
    """Operators by torch's names, each an overload (`aten::mm.out`) or all of them (`aten::mm.*`)."""

    missing: tuple[Name, ...] = ()
    """Not registered: the dispatcher says so when one is called."""
    fallback: tuple[Name, ...] = ()
    """Registered, and copied to the CPU and back with the warning that torch's own fallback gives."""
    wrong: dict[Name, Wrong] = Field(default_factory=dict)
    slow: dict[Name, PositiveFloat] = Field(default_factory=dict)
    """Seconds that a call takes longer."""
    crashes: tuple[Name, ...] = ()
    """A call ends the process."""


def meant(overload: str, names: Container[str]) -> str | None:
    """Which of `names` means this overload."""
    return next((name for name in (overload, f"{overload.partition('.')[0]}.*") if name in names), None)
