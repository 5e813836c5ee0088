"""Whether a target has an operator: from torch's dispatcher, or from a vendor's list."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from day0.artifacts.operators import Status
from tasks.operators.records import EXPLICIT, IMPLICIT, Capture, Registration
from tasks.operators.settings import TargetOperators

Answer = tuple[Status, str | None]

NOWHERE = Registration(exists=False)


class OperatorSupport(Protocol):
    """A target's operators."""

    def lookup(self, overload: str) -> Answer:
        """The status of an overload, and `via`: its out= kernel, what it becomes, or where it falls back to; of a
        composite one without support the parts that are lacking, and of `unknown` why."""


def support_for(operators: TargetOperators, capture: Capture) -> OperatorSupport:
    """The provider that a target's config names."""
    if operators.provider == "list":
        return ListSupport(operators, capture)
    return DispatcherSupport(operators, capture)


class _Support(ABC):
    """What both providers share: how an operator without a kernel of its own may still run.

    An operator counts as there only if something will really compute it. In particular the dispatcher's own "has a
    computed kernel" is no support: a structured operator such as aten::mm has one for every backend, and it calls
    aten::mm.out, which the backend may lack.
    """

    def __init__(self, operators: TargetOperators, capture: Capture) -> None:
        self.operators = operators
        self.registrations: Mapping[str, Registration] = capture.registrations
        self.parts = capture.parts
        self.device = operators.dispatch_key

    @abstractmethod
    def has_kernel(self, overload: str) -> bool:
        """Whether the target has a kernel of its own for exactly this overload."""

    def why_unknown(self) -> str | None:
        """Why an operator that was not found may be there nevertheless; None: it is not there."""
        return None

    def lookup(self, overload: str) -> Answer:
        registration = self.registrations.get(overload, NOWHERE)
        if self.has_kernel(overload):
            return "native", None
        if registration.delegate and self.has_kernel(registration.delegate):
            return "native", registration.delegate
        if why := self.why_unknown():
            return "unknown", why
        if EXPLICIT in registration.keys:
            return "composite", EXPLICIT
        if IMPLICIT in registration.keys:
            return self._composite(overload)
        if self.operators.fallback and self._on_cpu(registration):
            return "fallback", self.operators.fallback
        return "missing", None

    def _composite(self, overload: str) -> Answer:
        """As good as the worst of what the operator becomes, on this device or on any; `via` names these parts."""
        by_device = self.parts.get(overload, {})
        parts = by_device.get(self.device or "", by_device.get("decomposed", ()))
        found = {part: self.lookup(part)[0] for part in parts}
        for status in ("missing", "unknown", "fallback"):
            if lacking := [part for part, its in found.items() if its == status]:
                return status, ", ".join(lacking)
        return "composite", ", ".join(parts) or IMPLICIT

    def _on_cpu(self, registration: Registration) -> bool:
        delegate = self.registrations.get(registration.delegate or "", NOWHERE)
        return "CPU" in {*registration.keys, *delegate.keys}


class DispatcherSupport(_Support):
    """The kernels registered in the torch that made the capture."""

    def __init__(self, operators: TargetOperators, capture: Capture) -> None:
        super().__init__(operators, capture)
        self.readable = capture.key_readable

    def has_kernel(self, overload: str) -> bool:
        return self.device in self.registrations.get(overload, NOWHERE).keys

    def why_unknown(self) -> str | None:
        return None if self.readable else f"the torch installed here was built without {self.device}"


class ListSupport(_Support):
    """The overloads that a target's config lists."""

    @functools.cached_property
    def listed(self) -> frozenset[str]:
        return frozenset(self.operators.operators)

    def has_kernel(self, overload: str) -> bool:
        return overload in self.listed or f"{overload.partition('.')[0]}.*" in self.listed

    def why_unknown(self) -> str | None:
        return None if self.operators.complete else "not listed, and the list is not complete"
