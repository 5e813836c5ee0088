"""What the reshard stage is asked to do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from day0.architecture.family import families_digest
from day0.artifacts.base import Settings


class ReshardSettings(Settings):
    """`families` makes a changed family description a changed input: the stage runs again."""

    layout: Literal["vllm", "hf"] = "vllm"
    part_bytes: int = Field(default=5 << 30, ge=1)
    """Size above which a rank's tensors go on in another file; 5 GiB as vLLM's own exporter has it."""
    families: str = Field(default_factory=families_digest)
