"""What the recipe is asked for."""

from __future__ import annotations

from pydantic import Field

from day0.artifacts.base import Settings


class RecipeSettings(Settings):
    """Where the recipe's container listens, and how it is called."""

    port: int = Field(default=8000, ge=1, le=65535)
    """On the loopback of the host, for launch.sh and compose; of the Service, for Kubernetes."""
