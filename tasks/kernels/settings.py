"""What the kernels stage is asked."""

from __future__ import annotations

from day0.artifacts.base import Settings
from day0.artifacts.kernels import KernelUsage


class KernelSettings(Settings):
    """The target is that of the operator report."""

    use: KernelUsage = "gaps"
    """`accepted`: the engine is given also kernels for what the target does not lack."""
    sources: str = ""
    """Digest of the folder of kernels (`find.sources_digest`): changed sources are other kernels."""
