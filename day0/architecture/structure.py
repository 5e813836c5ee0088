"""What a model consists of, by its config alone: every tensor with its shape, and its cache.

From this one table come the parameter count, what each rank of a parallel layout holds, and the work of a step; the
checkpoint's headers are held against it tensor by tensor. A family is a function from a config to such a table
(`FAMILIES`). What no family describes is refused: a mixture of experts counted as a dense model would be a wrong
number, and a wrong number is worse than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from day0.architecture.attention import GroupedQueryAttention
from day0.architecture.config import ModelConfig, model_type_of, parse_model_config
from day0.errors import InputError


class Split(StrEnum):
    """How tensor parallelism divides a tensor."""

    REPLICATED = "replicated"
    COLUMN = "column"
    """Dimension 0, the outputs."""
    ROW = "row"
    """Dimension 1, the inputs."""
    KV_HEADS = "kv_heads"
    """Dimension 0 by key-value heads; with more ranks than heads, each rank holds a copy of one head."""
    VOCAB = "vocab"
    """Dimension 0 by vocabulary, padded first."""


@dataclass(frozen=True)
class Part:
    """One tensor. `layer` is None for what stands before or after the layers."""

    name: str
    kind: str
    layer: int | None
    shape: tuple[int, ...]
    split: Split

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Each token is multiplied by it; an embedding is looked up instead."""
        return len(self.shape) == 2 and self.kind != "embedding"


@dataclass(frozen=True)
class Structure:
    """A model's tensors and cache. `attention` says what one layer caches, the same for each of `config.layers`."""

    config: ModelConfig
    family: str
    parts: tuple[Part, ...]
    attention: GroupedQueryAttention
    ignored: re.Pattern[str]
    """Names of tensors in a checkpoint that hold no parameters."""

    def parameters(self) -> int:
        return sum(part.numel for part in self.parts)


def structure_of(raw: Mapping[str, Any], where: str) -> Structure:
    """The structure of the model that a config object describes; `where` names the file in errors.

    Raises:
        InputError: a value cannot be used, or the model is of a kind that no family here describes.
    """
    model_type = model_type_of(raw, where)
    family = FAMILIES.get(model_type)
    found = foreign_features(raw)
    if family is None:
        needs = f" and the config has {found[0]}" if found else ""
        raise InputError(
            f"{where}: model_type {model_type!r} is not supported yet: no family describes its tensors (there is "
            f"{', '.join(sorted(FAMILIES))}){needs}; it is not counted as another kind of model"
        )
    if found:
        raise InputError(
            f"{where}: model_type {model_type!r}, but the config has {found[0]}, which the family {family.__name__!r} "
            f"does not describe; it is not counted as a plain dense model"
        )
    config = parse_model_config(raw, where)
    if config.quantization:
        raise InputError(
            f"{where}: model_type {model_type!r} quantised by {config.quantization!r} (quantization_config): the sizes "
            f"of quantised weights are not supported yet; use the unquantised release"
        )
    return family(config)


#: Config keys that mean a part which a plain dense decoder does not have. Zero, false, null and empty mean: not there.
_FOREIGN = (
    (re.compile(r"(^|_)(experts?|moe)(_|$)|^num_experts|experts_per_tok"), "a mixture of experts"),
    (re.compile(r"^(kv|q)_lora_rank$|^qk_(rope|nope)_head_dim$"), "multi-head latent attention"),
    (re.compile(r"^index_(topk|n_heads|head_dim)$|^compress_ratios$"), "sparse attention with an indexer"),
    (re.compile(r"mamba|(^|_)ssm(_|$)|^linear_attn|^linear_(conv|key|value|num)|^hybrid_"), "recurrent layers"),
    (re.compile(r"^attention_chunk_size$|^no_rope_layers$|^global_head_dim$"), "layers of different attention"),
    (re.compile(r"^num_nextn_predict_layers$|^mtp_"), "multi-token prediction layers"),
    (re.compile(r"^(text|vision|audio|speech|thinker|talker)_config$"), "nested models"),
    (re.compile(r"^block_configs$|^layers_block_type$"), "layers of different shapes"),
    (re.compile(r"^is_encoder_decoder$|^cross_attention"), "an encoder"),
)  # fmt: skip


def foreign_features(raw: Mapping[str, Any]) -> list[str]:
    """What a config has that a plain dense decoder does not, such as `a mixture of experts (num_experts 128)`."""
    found = []
    for key, value in raw.items():
        if not value or value == 0:
            continue
        for pattern, meaning in _FOREIGN:
            if pattern.search(key):
                shown = f" {value}" if type(value) is int and value < 10**9 else ""
                found.append(f"{meaning} ({key}{shown})")
    if raw.get("sliding_window") and raw.get("use_sliding_window") is not False:
        found.append("sliding-window attention (sliding_window)")
    kinds = raw.get("layer_types")
    if isinstance(kinds, list) and (other := [kind for kind in kinds if kind != "full_attention"]):
        found.append(f"layers of different attention (layer_types: {str(other[0])[:40]})")
    return found


def llama(config: ModelConfig) -> Structure:
    """Llama and what is built like it: pre-norm decoder, MHA, GQA or MQA with RoPE, gated MLP, RMSNorm.

    Touvron et al. 2023 (arXiv:2302.13971); tensor names of transformers' LlamaForCausalLM.
    """
    return Structure(
        config=config,
        family="llama",
        parts=tuple(_llama_parts(config)),
        attention=GroupedQueryAttention(config.heads, config.kv_heads, config.head_dim),
        ignored=re.compile(r"(^|\.)rotary_emb\.inv_freq$"),  # a buffer that old releases saved
    )


def _llama_parts(config: ModelConfig) -> Iterator[Part]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.heads * head, config.kv_heads * head
    yield Part("model.embed_tokens.weight", "embedding", None, (config.vocab_size, hidden), Split.VOCAB)
    for layer in range(config.layers):
        at = f"model.layers.{layer}"
        yield Part(f"{at}.input_layernorm.weight", "norm", layer, (hidden,), Split.REPLICATED)
        for name, rows, columns, split in (
            ("q_proj", queries, hidden, Split.COLUMN),
            ("k_proj", keys, hidden, Split.KV_HEADS),
            ("v_proj", keys, hidden, Split.KV_HEADS),
            ("o_proj", hidden, queries, Split.ROW),
        ):
            yield from _linear(
                f"{at}.self_attn.{name}", "attention", layer, rows, columns, split, config.attention_bias
            )
        yield Part(f"{at}.post_attention_layernorm.weight", "norm", layer, (hidden,), Split.REPLICATED)
        for name, rows, columns, split in (
            ("gate_proj", inner, hidden, Split.COLUMN),
            ("up_proj", inner, hidden, Split.COLUMN),
            ("down_proj", hidden, inner, Split.ROW),
        ):
            yield from _linear(f"{at}.mlp.{name}", "mlp", layer, rows, columns, split, config.mlp_bias)
    yield Part("model.norm.weight", "norm", None, (hidden,), Split.REPLICATED)
    if not config.tied_embeddings:
        yield Part("lm_head.weight", "lm_head", None, (config.vocab_size, hidden), Split.VOCAB)


def _linear(
    name: str, kind: str, layer: int | None, rows: int, columns: int, split: Split, bias: bool
) -> Iterator[Part]:
    yield Part(f"{name}.weight", kind, layer, (rows, columns), split)
    if bias:  # a row-split layer adds its bias once, after the ranks' results are summed
        yield Part(f"{name}.bias", kind, layer, (rows,), Split.REPLICATED if split is Split.ROW else split)


#: model_type → the function that describes it. To add a family, add such a function (and, for a new kind of
#: attention, its class in attention.py).
FAMILIES: Mapping[str, Callable[[ModelConfig], Structure]] = {"llama": llama}
