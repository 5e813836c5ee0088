"""What the profile is asked for."""

from __future__ import annotations

from pydantic import Field

from day0.architecture.family import families_digest
from day0.artifacts.base import Settings


class ProfileSettings(Settings):
    """The load that costs are stated for."""

    context: int | None = Field(default=None, ge=1, le=1 << 40)
    """Tokens of a sequence; None: the longest that the model takes."""
    concurrency: int = Field(default=1, ge=1, le=1_000_000)
    """Sequences at a time."""
    kv_dtype: str = "bfloat16"
    """Of the KV cache."""
    concentration: float = Field(default=0.1, gt=0, le=1)
    """Kinds of parameters that hold at least this share of the total are named."""
    families: str = Field(default_factory=families_digest)
    """Digest of the family files that the model is read by."""
