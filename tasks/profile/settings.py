"""What the profile is asked for. A target's content is part of it, so that an edited target makes a new profile."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from day0.architecture.family import families_digest
from day0.artifacts.base import Settings
from day0.target import Target, load_target


class ProfileSettings(Settings):
    """The load that costs are stated for, and the target whose roofline is drawn."""

    context: int | None = Field(default=None, ge=1, le=1 << 40)
    """Tokens of a sequence; None: the longest that the model takes."""
    concurrency: int = Field(default=1, ge=1, le=1_000_000)
    """Sequences at a time."""
    kv_dtype: str = "bfloat16"
    """Of the KV cache."""
    index_dtype: str | None = None
    """Of an indexer's keys; None: that of the KV cache."""
    page: int = Field(default=16, ge=1, le=1 << 20)
    """Tokens of a page of the KV cache, for what an engine allocates."""
    batched_tokens: int = Field(default=8192, ge=1, le=1 << 30)
    """Most tokens that an engine computes in one pass, for what it allocates."""
    target: str | None = None
    """Name of the target whose roofline is drawn; `spec` is then read from its config."""
    spec: Target | None = None
    library: bool = False
    """Whether the library's own modules are counted too, on the meta device, where it knows the type."""
    concentration: float = Field(default=0.1, gt=0, le=1)
    """Kinds of parameters that hold at least this share of the total are named."""
    families: str = Field(default_factory=families_digest)
    """Digest of the family files that the model is read by."""

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("target"), str) and values.get("spec") is None:
            return {**values, "spec": load_target(values["target"])}
        return values
