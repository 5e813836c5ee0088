"""What a model consists of, by its config alone: every tensor with its shape, and its cache.

The tensors are those of the family's rules (configs/families/), so that counting, planning and resharding cannot
disagree. From this one table come the parameter count, what each rank of a parallel layout holds, and the work of a
step; the checkpoint's headers are held against it tensor by tensor. What no family describes is refused: a mixture of
experts counted as a dense model would be a wrong number, and a wrong number is worse than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from day0.architecture.attention import GroupedQueryAttention
from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, BoundRule
from day0.architecture.config import ModelConfig, model_type_of, parse_model_config
from day0.architecture.family import Family, find_family
from day0.architecture.rules import Split
from day0.errors import InputError

#: The layout whose padding of the vocabulary is planned for.
ENGINE_LAYOUT = "vllm"


@dataclass(frozen=True)
class Part:
    """One tensor. `layer` is None for what stands before (`stage` first) or after (last) the layers."""

    name: str
    kind: str
    layer: int | None
    shape: tuple[int, ...]
    split: Split
    units: int
    """Along the divided dimension, how many pieces cannot be cut (heads, rows); 1 where nothing is divided."""
    stage: Literal["first", "last"] | None

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
    family: BoundFamily
    parts: tuple[Part, ...]
    attention: GroupedQueryAttention

    @cached_property
    def total(self) -> int:
        """Parameters."""
        return sum(part.numel for part in self.parts)

    @property
    def padded_vocab(self) -> int:
        """The vocabulary as the engine pads it before it is divided."""
        layout = self.family.layouts.get(ENGINE_LAYOUT)
        multiple = layout.vocab_multiple if layout else 1
        return -(-self.config.vocab_size // multiple) * multiple


def structure_of(raw: Mapping[str, Any], where: str) -> Structure:
    """The structure of the model that a config object describes; `where` names the file in errors.

    Raises:
        InputError: a value cannot be used, or the model is of a kind that no family describes.
    """
    model_type = model_type_of(raw, where)
    found = foreign_features(raw)
    family = _family(raw, where, model_type, found)
    if found:
        raise InputError(
            f"{where}: model_type {model_type!r}, but the config has {found[0]}, which the family {family.name!r} "
            f"does not describe; it is not counted as a plain dense model"
        )
    config = parse_model_config(raw, where)
    if config.quantization:
        raise InputError(
            f"{where}: model_type {model_type!r} quantised by {config.quantization!r} (quantization_config): the sizes "
            f"of quantised weights are not supported yet; use the unquantised release"
        )
    bound = bind(family, raw)
    return Structure(config, bound, tuple(_parts(bound)), ATTENTION[family.name](config))


#: Family → the attention of its layers. A family of another kind of attention adds its class to attention.py, and
#: a line here.
ATTENTION: Mapping[str, Callable[[ModelConfig], GroupedQueryAttention]] = {
    "llama": lambda config: GroupedQueryAttention(config.heads, config.kv_heads, config.head_dim),
}


def _family(raw: Mapping[str, Any], where: str, model_type: str, found: list[str]) -> Family:
    needs = f"; the config has {found[0]}" if found else ""
    try:
        family = find_family(raw)
    except InputError as error:
        raise InputError(f"{where}: {error}{needs}; it is not counted as another kind of model") from error
    if family.name not in ATTENTION:
        raise InputError(
            f"{where}: model_type {model_type!r} can be verified and resharded, but not profiled yet: the attention of "
            f"family {family.name!r} is not described{needs}; it is not counted as another kind of model"
        )
    return family


def _parts(family: BoundFamily) -> Iterator[Part]:
    """Every tensor that the config calls for, in the order of the model."""
    rules = [rule for rule in family.rules if not (rule.optional or (rule.rule.kind == "head" and family.tied))]
    yield from (_part(rule, None) for rule in rules if rule.rule.stage == "first")
    for layer in range(family.layers):
        yield from (_part(rule, layer) for rule in rules if "layer" in rule.numbers)
    yield from (_part(rule, None) for rule in rules if rule.rule.stage == "last")


def _part(bound: BoundRule, layer: int | None) -> Part:
    rule = bound.rule
    name = bound.named({} if layer is None else {"layer": layer})
    units = bound.segments[0].units if rule.split.by else 1
    return Part(name, rule.kind, layer, bound.shape, rule.split, units, rule.stage)


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
