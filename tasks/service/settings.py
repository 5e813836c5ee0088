"""What the service stage is asked for."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints

from day0.artifacts.base import Settings
from day0.artifacts.service import Runtime

ServedName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=200)]


def served_name(release: str) -> str:
    """What clients call a release: its own name, with what a URL or a file name would not bear replaced."""
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", release).lstrip("._/-")[:200] or "model"


class ServiceSettings(Settings):
    """`lock_digest` is that of the engine's folder in images/ (`environment.lock_digest`), `config_digest` that of its
    file in configs/engines/: a changed environment, or another way to start it, is another service."""

    engine: str
    """Name of a file in configs/engines/."""
    runtime: Runtime
    lock_digest: str
    config_digest: str
    model_name: ServedName = "model"
    """What clients call the model."""
    ready_timeout: float | None = Field(default=None, gt=0)
    """Seconds; None: the engine's own."""
