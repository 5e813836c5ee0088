"""Profile: what a model is, read from its config and tensor headers, without its weights."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class Parameters(Frozen):
    """Counts of parameters. `active`: those that one token touches, embeddings included."""

    total: int
    active: int
    active_without_embedding: int
    by_kind: dict[str, int]
    by_layer: tuple[int, ...]


class KVCache(Frozen):
    """Cache and state of one copy of the model; bytes. a + b·T per sequence of T tokens."""

    dtype: str
    bytes_per_token: int
    bytes_per_sequence: int
    bytes_at_context: int
    """At `context` tokens, for `concurrency` sequences."""
    by_layer_kind: tuple[dict[str, Any], ...]


class CheckpointSize(Frozen):
    files: int
    tensors: int
    bytes: int


class Profile(Artifact):
    """Everything that the planner needs to know about a model."""

    kind: ClassVar[str] = "profile"

    architecture: dict[str, Any]
    """`model_type`, `family`, `layers`, `hidden_size`, `heads`, `kv_heads`, `head_dim`, `vocab_size`, `dtype`,
    `tied_embeddings`, `attention`, `position`, `vision` (bool), `chat_template` (bool), `remote_code` (bool), …"""
    parameters: Parameters
    context_length: int
    context: int
    concurrency: int
    kv_cache: KVCache
    checkpoint: CheckpointSize | None
    warnings: tuple[str, ...] = ()
