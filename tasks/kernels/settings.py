"""What the kernels stage is asked."""

from __future__ import annotations

from day0.artifacts.base import Settings


class KernelSettings(Settings):
    """The target is that of the operator report."""
