"""What one kind of evidence says of an operator, and what they say together."""

from __future__ import annotations

from typing import Literal

from day0.artifacts.base import Frozen
from day0.artifacts.operators import Outcome, Status

Kind = Literal["measured", "registered", "listed"]

#: From the best to the weakest.
KINDS: tuple[Kind, ...] = ("measured", "registered", "listed")


class Finding(Frozen):
    """What one kind of evidence says of an overload."""

    kind: Kind
    status: Status
    via: str | None = None
    """The out= kernel, what a composite becomes, or where it falls back to; of a composite without support the parts
    that are lacking, and of `unknown` why."""
    source: str
    """The device, the build of torch, or the vendor's file with its commit."""
    date: str | None = None
    detail: str | None = None
    outcome: Outcome | None = None
    """What measuring showed."""
    apart: bool = False
    """A composite of several kernels, or of one called several times."""
    reads_host: bool = False
    """A composite that waits for a value which it reads on the host."""

    def says(self) -> str:
        """For people, in a sentence about a conflict."""
        return f"{self.kind}: {self.status}{f' ({self.detail})' if self.detail else ''}, {self.source}"


class Support(Frozen):
    """The answer for an overload. `evidence` is what it rests on, None where nothing was found."""

    status: Status
    via: str | None = None
    evidence: Finding | None = None
    findings: tuple[Finding, ...] = ()
    """Of every kind that tells anything, the best first."""
    conflicts: tuple[str, ...] = ()
    """Where weaker evidence says something else, and where a vendor's own tests fail."""
    notes: tuple[str, ...] = ()
    """What else is known: a library's kernel, who alone has it, what it does to graph capture."""
    apart: bool = False
    reads_host: bool = False
    """Both as in Finding: of a composite."""


def reached(status: Status) -> str:
    """What a status means for whether two sorts of evidence agree: native and composite both compute it there."""
    return "there" if status in ("native", "composite") else status
