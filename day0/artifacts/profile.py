"""Profile: what a model is, read from its config and tensor headers, without its weights."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class Parameters(Frozen):
    """Counts of parameters: scales, buffers and a second copy of tied weights are none."""

    total: int
    active: int
    """Those that one token's pass touches, with the input embedding and the output head; of a dense model all."""
    active_without_embedding: int
    """`active` without the input embedding's table (vocabulary × hidden size), which is looked up, not multiplied.
    An untied output head stays counted; a tied one is the same table, so it goes with it."""
    by_kind: dict[str, int]
    """Kinds as in configs/families/: `embedding`, `attention`, `dense_mlp`, `norm`, `head`."""
    by_layer: tuple[int, ...]


class KVCache(Frozen):
    """Cache and state of one copy of the model; bytes. a + b·T per sequence of T tokens."""

    dtype: str
    bytes_per_token: int
    """b: what one more token costs, once every window is full."""
    bytes_per_sequence: int
    """a: what a sequence costs whatever its length."""
    bytes_at_context: int
    """At `context` tokens, for `concurrency` sequences."""
    by_layer_kind: tuple[dict[str, Any], ...]
    """For each kind of layer: `kind`, `layers`, `kv_heads`, `head_dim`, and its bytes, as above, of all its layers."""


class CheckpointSize(Frozen):
    files: int
    tensors: int
    bytes: int
    """Of the tensors' data."""


class Profile(Artifact):
    """Everything that the planner needs to know about a model."""

    kind: ClassVar[str] = "profile"

    architecture: dict[str, Any]
    """Sizes: `model_type`, `architectures`, `family`, `layers`, `hidden_size`, `intermediate_size`, `heads`,
    `kv_heads`, `head_dim`, `vocab_size`, `dtype`, `tied_embeddings`, `attention_bias`, `mlp_bias`.
    Kind: `attention` (`MHA`, `GQA`, `MQA`), `position` (RoPE's type, theta, factor, original context), `vision`,
    `remote_code`.
    Of the folder: `stored_head` (the checkpoint has an output head although the config ties it), and, None for a
    config alone, `chat_template`, `tokenizer`, `special_tokens`, `licence`.
    Cost: `concentration` (the kinds of parameters and the layers that hold much, with their share) and `work` (FLOPs
    and bytes of a prefill of `context` tokens and of a decode step at that context, for `concurrency` sequences)."""
    parameters: Parameters
    context_length: int
    """The longest sequence that the config allows, RoPE scaling included."""
    context: int
    concurrency: int
    kv_cache: KVCache
    checkpoint: CheckpointSize | None
    """None for a config alone."""
    warnings: tuple[str, ...] = ()
