"""What a model is, in words and sizes: attention, positions, routing, towers. From the config alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from day0.architecture.config import MULTIPLIED, Rope
from day0.architecture.decoder_rules import BoundPosition
from day0.architecture.structure import LayerAttention, Structure

#: Kind of attention (configs/families/) → what the literature calls it. Those that share key-value heads are called
#: by how they share them.
VARIANTS = {
    "latent": "MLA", "sparse_latent": "MLA, sparse with an indexer (DSA)", "compressed": "compressed (CSA/HCA)",
    "delta_net": "gated delta net", "kimi_delta": "Kimi delta attention (KDA)", "mamba2": "Mamba 2",
    "lightning": "lightning attention", "cross": "cross attention",
}  # fmt: skip
MANNERS = {"full": "", "sliding": " in a sliding window", "chunked": " in chunks", "block_sparse": ", sparse by blocks"}


def architecture_facts(structure: Structure, dtype: str | None) -> dict[str, Any]:
    """Sizes and kinds, as `Profile.architecture` has them; `dtype` is what unquantised weights are held in."""
    config, text = structure.config, structure.config.text
    heads = _heads(structure)
    kinds = {group.rule.rule.kind for group in structure.groups}
    return {
        "model_type": config.model_type,
        "architectures": list(config.architectures),
        "family": structure.family.family.name,
        "recognised": structure.recognised.evidence,
        "layers": structure.layers,
        "hidden_size": structure.hidden,
        "intermediate_size": text.get("intermediate_size"),
        "heads": heads.get("heads"),
        "kv_heads": heads.get("kv_heads"),
        "head_dim": heads.get("head_dim"),
        "vocab_size": structure.vocab,
        "dtype": dtype,
        "tied_embeddings": structure.family.tied,
        "attention": " + ".join(dict.fromkeys(variant(entry) for entry in _decoder(structure))),
        "attention_layers": list(_attention(structure.attention)),
        "position": _position(structure),
        "routing": [
            {"layers": len(r.layers), "experts": r.experts, "per_token": r.per_token, "shared": r.shared, **r.facts}
            for r in structure.routing
            if not r.mtp
        ],
        "vision": "vision" in kinds,
        "audio": "audio" in kinds,
        "mtp_layers": _mtp_layers(structure),
        "remote_code": config.remote_code,
        "stored_head": structure.stored_head,
    }


def variant(entry: LayerAttention) -> str:
    """What a layer's attention is called: `GQA`, `MLA`, `MQA in a sliding window`, …"""
    attention = entry.attention
    if attention.kind in VARIANTS:
        return VARIANTS[attention.kind]
    heads, kv_heads = attention.sizes["heads"], attention.sizes["kv_heads"]
    shared = "MHA" if heads == kv_heads else "MQA" if kv_heads == 1 else "GQA"
    return shared + MANNERS[attention.kind]


def _heads(structure: Structure) -> Mapping[str, int]:
    """Sizes of the attention that has keys and values for each head, or, where there is none, of what else has heads
    (a latent's, a recurrent state's)."""
    sizes = [entry.attention.sizes for entry in _decoder(structure)]
    return next((held for key in ("kv_heads", "latent", "heads") for held in sizes if key in held), {})


def _mtp_layers(structure: Structure) -> int:
    """Modules of multi-token prediction: as many as the config or the checkpoint says."""
    stored = {layer for group in structure.groups if group.mtp for layer in group.layers or (-1,)}
    said = {layer for entry in structure.attention if entry.mtp for layer in entry.layers}
    return max(len(stored), len(said))


def _decoder(structure: Structure) -> list[LayerAttention]:
    """The decoder's kinds of attention, that of most layers first."""
    return sorted((entry for entry in structure.attention if not entry.mtp), key=lambda entry: -len(entry.layers))


def _attention(listed: Sequence[LayerAttention]) -> Iterator[dict[str, Any]]:
    for entry in listed:
        attention = entry.attention
        yield {
            "kind": attention.name,
            "variant": variant(entry),
            "layers": list(entry.layers),
            "mtp": entry.mtp,
            **attention.sizes,
        }


def _position(structure: Structure) -> dict[str, Any]:
    """The scheme, how positions beyond those of the training are reached, and the same for each set of layers."""
    config = structure.config
    known = _schemes(structure.position)
    nothing: dict[str, Any] = dict.fromkeys(("type", "theta", "factor", "original_context")) | {"extrapolated": False}
    rope = nothing if known["scheme"] == "none" else _rope(config.rope)
    return {**rope, "max_position_embeddings": config.max_position_embeddings, **known}


def _rope(rope: Rope) -> dict[str, Any]:
    extended = rope.original_context is not None or rope.type in MULTIPLIED
    return {
        "type": rope.type,
        "theta": rope.theta,
        "factor": rope.factor,
        "original_context": rope.original_context,
        "extrapolated": extended,
    }


def _schemes(listed: Sequence[BoundPosition]) -> dict[str, Any]:
    """`scheme` (several joined), and for each its layers, base, rotated dimensions and scaling."""
    schemes = list(dict.fromkeys(position.scheme for position in listed)) or ["unknown"]
    rows = [
        {
            "scheme": position.scheme,
            "layers": len(position.layers),
            "theta": position.theta,
            "dim": position.dim,
            "type": _kind(position.parameters) if position.scheme != "none" else None,
            "factor": position.parameters.get("factor"),
        }
        for position in listed
    ]
    return {"scheme": " + ".join(schemes), "by_layers": rows}


def _kind(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("rope_type", parameters.get("type", "default")))[:40]
