"""What torch's dispatcher has registered: in the torch that made the capture."""

from __future__ import annotations

from day0.devices import other_torch
from day0.target_operators import TargetOperators
from tasks.operators.records import Capture, Registration
from tasks.operators.support.findings import Finding

NOWHERE = Registration(exists=False)


class Registered:
    """Kernels for the target's dispatch key.

    Only what will really compute counts. The dispatcher's own "has a computed kernel" is no support: a structured
    operator such as aten::mm has one for every backend, and it calls aten::mm.out, which the backend may lack.
    """

    def __init__(self, operators: TargetOperators, capture: Capture) -> None:
        self.key = operators.dispatch_key
        self.registrations = capture.registrations
        self.source = f"torch {capture.packages.get('torch', '')}".strip()
        self.unreadable = _unreadable(operators, capture)
        """Why this torch cannot tell; None: it can."""

    def kernel(self, overload: str) -> Finding | None:
        """The kernel for exactly this overload, or for the out= overload that it computes through."""
        registration = self.registrations.get(overload, NOWHERE)
        if self.unreadable or self.key is None:
            return None
        if self.key in registration.keys:
            return Finding(kind="registered", status="native", source=self.source)
        if registration.delegate and self.key in self.registrations.get(registration.delegate, NOWHERE).keys:
            return Finding(kind="registered", status="native", via=registration.delegate, source=self.source)
        return None


def _unreadable(operators: TargetOperators, capture: Capture) -> str | None:
    """One key serves many devices: PrivateUse1 is any vendor's, and CUDA is also what ROCm and its like call
    themselves. So the build of torch, or the vendor's package beside it, must be the target's."""
    if operators.dispatch_key is None:
        return "torch has no key to ask for"
    if not capture.key_readable:
        return f"the torch installed here was built without {operators.dispatch_key}"
    return other_torch(operators.torch_build, operators.torch_plugin, capture.packages.get("torch", ""))
