"""Checkpoints to measure with, in bf16, of random bytes or of holes.

`moe`: Qwen3-30B-A3B's proportions: small tensors, whose rows tensor parallelism cuts into short runs. `dense`:
Llama-3.2-3B's.
"""

from __future__ import annotations

import json
from pathlib import Path

from day0.checkpoint import Checkpoint, open_checkpoint
from tests.models.safetensors_file import nbytes, random_bytes, write_file, write_holes

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, VOCAB = 2048, 768, 32, 4, 128, 32, 50_432
SHARDS = 8
DENSE_HIDDEN, DENSE_INTERMEDIATE, DENSE_HEADS, DENSE_KV_HEADS = 3072, 8192, 24, 8
LAYER_BYTES = {"moe": 339_000_000, "dense": 201_000_000}  # about, with all experts


def make_checkpoint(
    root: Path, gigabytes: float, sparse: bool = False, shards: int = SHARDS, proportions: str = "moe"
) -> Checkpoint:
    """About `gigabytes` in some shards (moe: 8 layers, 843 tensors, 3.13 GB for 3.1); `sparse` ones take no space."""
    root.mkdir(parents=True)
    dense = proportions == "dense"
    hidden = DENSE_HIDDEN if dense else HIDDEN
    layers = max(1, round((gigabytes * 1e9 - 4 * hidden * VOCAB) / LAYER_BYTES[proportions]))
    shapes = _dense_shapes(layers) if dense else _shapes(layers)
    total = sum(map(_nbytes, shapes.values()))
    parts: list[dict[str, tuple[int, ...]]] = [{}]
    done = 0
    for name, shape in shapes.items():
        if done >= total * len(parts) / shards:
            parts.append({})
        parts[-1][name] = shape
        done += _nbytes(shape)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        weight_map |= dict.fromkeys(part, file)
        described = {name: ("BF16", shape) for name, shape in part.items()}
        if sparse:
            write_holes(root / file, described)
        else:
            write_file(root / file, described, random_bytes(sum(map(_nbytes, part.values()))))
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (root / "config.json").write_text(json.dumps(_dense_config(layers) if dense else _config(layers)))
    return open_checkpoint(root)


def _shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """In the order that the model's own shards have them: layer by layer."""
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (query, HIDDEN),
        "self_attn.k_proj.weight": (key, HIDDEN),
        "self_attn.v_proj.weight": (key, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, query),
        "self_attn.q_norm.weight": (HEAD_DIM,),
        "self_attn.k_norm.weight": (HEAD_DIM,),
        "mlp.gate.weight": (EXPERTS, HIDDEN),
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    for expert in range(EXPERTS):
        layer[f"mlp.experts.{expert}.gate_proj.weight"] = (INTERMEDIATE, HIDDEN)
        layer[f"mlp.experts.{expert}.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
        layer[f"mlp.experts.{expert}.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}


def _dense_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    query, key = DENSE_HEADS * HEAD_DIM, DENSE_KV_HEADS * HEAD_DIM
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (DENSE_HIDDEN,),
        "mlp.down_proj.weight": (DENSE_HIDDEN, DENSE_INTERMEDIATE),
        "mlp.gate_proj.weight": (DENSE_INTERMEDIATE, DENSE_HIDDEN),
        "mlp.up_proj.weight": (DENSE_INTERMEDIATE, DENSE_HIDDEN),
        "post_attention_layernorm.weight": (DENSE_HIDDEN,),
        "self_attn.k_proj.weight": (key, DENSE_HIDDEN),
        "self_attn.o_proj.weight": (DENSE_HIDDEN, query),
        "self_attn.q_proj.weight": (query, DENSE_HIDDEN),
        "self_attn.v_proj.weight": (key, DENSE_HIDDEN),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, DENSE_HIDDEN)}
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (DENSE_HIDDEN,), "lm_head.weight": (VOCAB, DENSE_HIDDEN)}


def _dense_config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": DENSE_HIDDEN,
        "intermediate_size": DENSE_INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": DENSE_HEADS,
        "num_key_value_heads": DENSE_KV_HEADS,
        "head_dim": HEAD_DIM,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }


def _config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": HIDDEN,
        "intermediate_size": 6144,
        "moe_intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
    }


def _nbytes(shape: tuple[int, ...]) -> int:
    return nbytes("BF16", shape)
