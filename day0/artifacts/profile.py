"""Profile: what a model is, read from its config and tensor headers, without its weights."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class Parameters(Frozen):
    """Counts of parameters: scales, buffers and a second copy of tied weights are none."""

    total: int
    """Of the model itself, as releases state it: without multi-token prediction."""
    active: int
    """Those of the language model that one token's pass touches, with the input embedding and the output head: of
    routed experts the chosen share. Towers of images and sound, and multi-token prediction, are not among them."""
    active_without_embedding: int
    """`active` without the input embedding's table (vocabulary × hidden size), which is looked up, not multiplied.
    An untied output head stays counted; a tied one is the same table, so it goes with it."""
    by_kind: dict[str, int]
    """Kinds as in configs/families/. Without `mtp` they add up to `total`; `mtp`, where there is one, is all of
    multi-token prediction beside the model."""
    by_layer: tuple[int, ...]
    """Of the decoder's layers."""


class EngineCache(Frozen):
    """What an engine that hands the cache out in pages reserves for a sequence at the context; bytes."""

    page_tokens: int
    batched_tokens: int
    bytes_per_sequence: int
    fragmentation: int
    """What of that is more than the ideal: partly filled pages, windows kept longer, padding between kinds."""


class KVCache(Frozen):
    """Cache and state of one copy of the model; bytes. a + b·T per sequence of T tokens."""

    dtype: str
    index_dtype: str
    """Of an indexer's keys."""
    state_dtype: str
    """Of recurrent states."""
    bytes_per_token: int | float
    """b: what one more token costs, once every window is full."""
    bytes_per_sequence: int
    """a: what a sequence costs whatever its length."""
    bytes_at_context: int
    """At `context` tokens, for `concurrency` sequences."""
    by_layer_kind: tuple[dict[str, Any], ...]
    """For each kind of layer: `kind`, `layers`, its sizes (`kv_heads`, `head_dim`, `window`, …), and its bytes, as
    above, of all its layers; `items` are the things that it keeps, each with its dtype and bytes."""
    engine: EngineCache | None = None
    mtp: dict[str, Any] | None = None
    """What multi-token prediction's layers add where an engine uses them: `layers`, `bytes_per_token`,
    `bytes_per_sequence`."""
    curve: tuple[tuple[int, int], ...] = ()
    """(tokens, bytes) of one sequence, at powers of two up to the context and at the context."""


class CheckpointSize(Frozen):
    files: int
    tensors: int
    bytes: int
    """Of the tensors' data."""


class Difference(Frozen):
    """Where two sources count differently, and why."""

    sources: str
    """Such as `config and headers`."""
    what: str
    elements: int | None = None
    bytes: int | None = None
    reason: str


class Concentration(Frozen):
    """Parts that hold much, or that a plan must place by themselves."""

    what: str
    layers: tuple[int, ...] | None = None
    parameters: int
    share: float
    reason: str


class Profile(Artifact):
    """Everything that the planner needs to know about a model."""

    kind: ClassVar[str] = "profile"

    architecture: dict[str, Any]
    """Sizes: `model_type`, `architectures`, `family`, `recognised` (the evidence, where no family names the type),
    `layers`, `hidden_size`, `intermediate_size`, `heads`, `kv_heads`, `head_dim`, `vocab_size`, `dtype` (of
    unquantised weights), `tied_embeddings`, `mtp_layers`.
    Kind: `attention` (in words), `attention_layers` (each kind with its layers and sizes), `position` (scheme, type,
    theta, factor, original context, by layers), `routing`, `vision`, `audio`, `remote_code`.
    Weights: `quantization` (`method`, `where` it is stated, `kv_dtype` that it is for, `formats`: share of the
    parameters by how they are stored, `parameters`: the same as counts, `bytes` of all tensors, and their `source`:
    `headers`, or predicted from the `config`).
    Of the folder: `stored_head` (the checkpoint has an output head although the config ties it), and, None for a
    config alone, `chat_template`, `tool_format`, `reasoning_format`, `tokenizer`, `tokenizer_class`,
    `special_tokens`, `added_tokens`, `generation`, `licence`, `licence_name`.
    Cost: `work` (FLOPs and bytes of a prefill of `context` tokens and of a decode step at that context, for
    `concurrency` sequences, by class of operator; with a target its roofline; and the sensitivity to long prompts and
    long answers)."""
    parameters: Parameters
    context_length: int
    """The longest sequence that the config allows, RoPE scaling included."""
    context: int
    concurrency: int
    kv_cache: KVCache
    checkpoint: CheckpointSize | None
    """None for a config alone."""
    target: str | None = None
    """Whose roofline `architecture.work` has."""
    concentration: tuple[Concentration, ...] = ()
    differences: tuple[Difference, ...] = ()
    """Between the sources: the config by formula, the tensor headers, the library's modules."""
    warnings: tuple[str, ...] = ()
