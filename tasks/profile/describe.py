"""Read a model folder, or a config.json alone, and put down what the model is and costs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from day0.architecture import work
from day0.architecture.dtypes import BYTES, KV_DTYPES, dtype_name
from day0.architecture.structure import Structure, structure_of
from day0.artifacts.profile import CheckpointSize, KVCache, Parameters, Profile
from day0.checkpoint import Checkpoint, open_checkpoint, read_config
from day0.verdict import Check, Verdict
from tasks.profile.folder import folder_facts
from tasks.profile.reconcile import dominant_dtype, kinds_of, reconcile, stores_tied_head
from tasks.profile.settings import ProfileSettings


def describe_model(path: Path, settings: ProfileSettings) -> Profile:
    """The profile of a model folder, or of a config.json alone.

    Raises:
        InputError: the config or the checkpoint's headers cannot be used, or the model is of a kind not known here.
    """
    structure = structure_of(read_config(path), str(path))
    config = structure.config
    checkpoint = open_checkpoint(path) if has_weights(path) else None
    facts, warnings = folder_facts(path) if path.is_dir() else (_NO_FOLDER, [])
    checks = [_sizes_check(structure)]
    stored = None
    if checkpoint:
        found, more = reconcile(structure, checkpoint.tensors)
        checks += found
        warnings = more + warnings
        stored = dominant_dtype(structure, checkpoint.tensors)
    else:
        reason = "there are no weights to hold the config against"
        checks.append(Check(name="checkpoint", verdict=Verdict.SKIPPED, reason=reason))
    kv_dtype = dtype_name(settings.kv_dtype, KV_DTYPES, "KV cache dtype")
    context = settings.context or config.context_length
    if context > config.context_length:
        warnings.append(f"a context of {context:,} tokens is longer than the model's {config.context_length:,}")
    if config.remote_code:
        warnings.append("the config names code of its own (auto_map), which is not executed")
    dtype = config.dtype or stored
    if dtype is None:
        warnings.append("neither config nor weights say the dtype: work is stated for bfloat16")
    return Profile(
        checks=tuple(checks),
        architecture={
            **_sizes(structure, dtype),
            "stored_head": checkpoint is not None and stores_tied_head(structure, checkpoint.tensors),
            **facts,
            "concentration": _concentration(structure, settings.concentration),
            "work": _work(structure, context, settings.concurrency, dtype or "bfloat16", kv_dtype),
        },
        parameters=count_parameters(structure),
        context_length=config.context_length,
        context=context,
        concurrency=settings.concurrency,
        kv_cache=kv_cache(structure, kv_dtype, context, settings.concurrency),
        checkpoint=_checkpoint_size(checkpoint),
        warnings=(*(f"{c.name}: {c.reason}" for c in checks if c.verdict is Verdict.FAIL), *warnings),
    )


def has_weights(path: Path) -> bool:
    """Whether a folder holds anything that should be a safetensors checkpoint."""
    return path.is_dir() and any(
        name.endswith((".safetensors", ".safetensors.index.json")) for name in os.listdir(path)
    )


def count_parameters(structure: Structure) -> Parameters:
    """Parameters by the shapes that follow from the config. Of a dense model all are active."""
    config = structure.config
    by_layer = [0] * config.layers
    for part in structure.parts:
        if part.layer is not None:
            by_layer[part.layer] += part.numel
    total = structure.total
    return Parameters(
        total=total,
        active=total,
        active_without_embedding=total - config.vocab_size * config.hidden_size,
        by_kind=kinds_of(structure.parts),
        by_layer=tuple(by_layer),
    )


def kv_cache(structure: Structure, dtype: str, context: int, concurrency: int) -> KVCache:
    """Bytes of the cache: layers · (fixed + per token · T) elements for each sequence of T tokens."""
    layers, attention = structure.config.layers, structure.attention
    per_token = layers * attention.cache_per_token * BYTES[dtype]
    fixed = layers * attention.cache_fixed * BYTES[dtype]
    kind = {
        "kind": attention.kind,
        "layers": layers,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "bytes_per_token": per_token,
        "bytes_per_sequence": fixed,
    }
    return KVCache(
        dtype=dtype,
        bytes_per_token=per_token,
        bytes_per_sequence=fixed,
        bytes_at_context=concurrency * (fixed + per_token * context),
        by_layer_kind=(kind,),
    )


_NO_FOLDER: dict[str, Any] = {"chat_template": None, "tokenizer": None, "special_tokens": None, "licence": None}


def _sizes(structure: Structure, dtype: str | None) -> dict[str, Any]:
    config = structure.config
    return {
        "model_type": config.model_type,
        "architectures": list(config.architectures),
        "family": structure.family.family.name,
        "layers": config.layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "dtype": dtype,
        "tied_embeddings": config.tied_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "attention": config.attention,
        "position": {
            "scheme": "rope",
            "type": config.rope.type,
            "theta": config.rope.theta,
            "factor": config.rope.factor,
            "original_context": config.rope.original_context,
            "max_position_embeddings": config.max_position_embeddings,
        },
        "vision": False,
        "remote_code": config.remote_code,
    }


def _concentration(structure: Structure, share: float) -> list[dict[str, Any]]:
    """Kinds that hold at least `share` of the parameters, most first, and layers of over twice the mean layer."""
    counted = count_parameters(structure)
    by_layer = counted.by_layer
    found = [
        {"what": kind, "parameters": count, "share": count / counted.total}
        for kind, count in sorted(counted.by_kind.items(), key=lambda item: -item[1])
        if count >= share * counted.total
    ]
    heavy = [layer for layer, count in enumerate(by_layer) if count > 2 * sum(by_layer) / len(by_layer)]
    return found + [
        {"what": f"layer {layer}", "parameters": by_layer[layer], "share": by_layer[layer] / counted.total}
        for layer in heavy
    ]


def _work(structure: Structure, context: int, concurrency: int, dtype: str, kv_dtype: str) -> dict[str, Any]:
    weight, cache = BYTES[dtype], BYTES[kv_dtype]
    prefill = work.prefill(structure, context, weight, cache, concurrency)
    decode = work.decode(structure, context, weight, cache, concurrency)
    return {
        phase: {"flops": done.flops, "bytes": done.bytes, "flops_per_byte": done.flops / done.bytes}
        for phase, done in (("prefill", prefill), ("decode", decode))
    }


def _sizes_check(structure: Structure) -> Check:
    total = structure.total
    reason = f"{total:,} parameters follow from the config as {structure.family.family.name}"
    return Check(name="config", verdict=Verdict.PASS, reason=reason, measured={"parameters": total})


def _checkpoint_size(checkpoint: Checkpoint | None) -> CheckpointSize | None:
    if checkpoint is None:
        return None
    return CheckpointSize(files=len(checkpoint.files), tensors=len(checkpoint.tensors), bytes=checkpoint.tensor_bytes)
