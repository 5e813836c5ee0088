"""Small random releases of other families than Llama, made without torch.

The sizes are what vLLM's CPU build can serve at tensor parallel sizes 1 and 2: heads of 32 or more; for multi-head
latent attention a cache row of 512 + 64. Weights are scaled so that a layer's output is about as large as its input.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.models.tiny import write_release

Tensors = dict[str, np.ndarray]

COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Random:
    """Seeded arrays of float32."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, *shape: int) -> np.ndarray:
        """The last dimension is the input's."""
        return self._random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    def norm(self, size: int) -> np.ndarray:
        return self._random.normal(1, 0.1, size).astype(np.float32)

    def bias(self, *shape: int) -> np.ndarray:
        return self._random.normal(0, 0.1, shape).astype(np.float32)

    def codes(self, *shape: int) -> np.ndarray:
        return self._random.integers(0, 256, shape, dtype=np.uint8)

    def fp8(self, *shape: int) -> np.ndarray:
        """Codes of F8_E4M3 between 2^-3 and 1.875, of either sign: their root mean square is about 0.85."""
        sign = self._random.integers(0, 2, shape, dtype=np.uint8) << 7
        return self._random.integers(0x20, 0x40, shape, dtype=np.uint8) | sign

    def scales(self, rows: int, columns: int) -> np.ndarray:
        """Of the blocks of 128 x 128 of a matrix: with them its values are about as large as those of `matrix`."""
        blocks = -(-rows // 128), -(-columns // 128)
        return (self._random.uniform(0.9, 1.5, blocks) * columns**-0.5).astype(np.float32)

    def exponents(self, *shape: int) -> np.ndarray:
        """Block scales 2^-7 … 2^-5: a random FP4 value is about 3."""
        return self._random.integers(120, 123, shape, dtype=np.uint8)


def make_tiny_qwen3_moe(
    root: Path,
    *,
    layers: int = 2,
    kv_heads: int = 2,
    experts: int = 8,
    vocab: int = 512,
    fp8: bool = False,
    seed: int = 0,
) -> Path:
    """Write a Qwen3-MoE: every layer has experts, heads have norms of their own.

    With `fp8` its projections are F8_E4M3 in blocks of 128 x 128, with scales in bf16, as in Qwen's own FP8 releases.
    """
    hidden, heads, head_dim, intermediate = 256, 8, 32, 128
    config = COMMON | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": head_dim,
        "intermediate_size": 512,
        "mlp_only_layers": [],
        "moe_intermediate_size": intermediate,
        "norm_topk_prob": True,
        "num_attention_heads": heads,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
    }
    random = Random(seed)
    tensors = {"model.embed_tokens.weight": random.matrix(vocab, hidden)}
    for layer in range(layers):
        p = f"model.layers.{layer}"
        tensors |= {
            f"{p}.input_layernorm.weight": random.norm(hidden),
            f"{p}.self_attn.q_proj.weight": random.matrix(heads * head_dim, hidden),
            f"{p}.self_attn.k_proj.weight": random.matrix(kv_heads * head_dim, hidden),
            f"{p}.self_attn.v_proj.weight": random.matrix(kv_heads * head_dim, hidden),
            f"{p}.self_attn.o_proj.weight": random.matrix(hidden, heads * head_dim),
            f"{p}.self_attn.q_norm.weight": random.norm(head_dim),
            f"{p}.self_attn.k_norm.weight": random.norm(head_dim),
            f"{p}.post_attention_layernorm.weight": random.norm(hidden),
            f"{p}.mlp.gate.weight": random.matrix(experts, hidden),
        }
        for expert in range(experts):
            tensors |= _gated(random, f"{p}.mlp.experts.{expert}", hidden, intermediate)
    projections = frozenset(name for name in tensors if name.endswith("_proj.weight")) if fp8 else frozenset()
    if fp8:
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(layers))],
        }
    scales = {f"{name}_scale_inv": random.scales(*tensors[name].shape) for name in sorted(projections)}
    tensors |= {name: random.fp8(*tensors[name].shape) for name in sorted(projections)} | scales
    return write_release(root, config, tensors | _end(random, vocab, hidden), fp8=projections)


def make_tiny_deepseek_v3(root: Path, *, layers: int = 3, experts: int = 8, vocab: int = 512, seed: int = 0) -> Path:
    """Write a DeepSeek-V3: latent attention, a dense first layer, then a shared and routed experts chosen by group.

    The router's correction bias is stored in float32, as DeepSeek does.
    """
    hidden, heads, q_rank, kv_rank, rope, nope, v_dim = 256, 4, 96, 512, 64, 32, 32
    intermediate, moe_intermediate, dense = 512, 128, 1
    config = COMMON | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "first_k_dense_replace": dense,
        "intermediate_size": intermediate,
        "kv_lora_rank": kv_rank,
        "moe_intermediate_size": moe_intermediate,
        "moe_layer_freq": 1,
        "n_group": 4,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": heads,
        "num_experts_per_tok": 2,
        "num_hidden_layers": layers,
        "num_key_value_heads": heads,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": q_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 2,
        "topk_method": "noaux_tc",
        "v_head_dim": v_dim,
        "vocab_size": vocab,
    }
    random = Random(seed)
    tensors = {"model.embed_tokens.weight": random.matrix(vocab, hidden)}
    float32 = set()
    for layer in range(layers):
        p = f"model.layers.{layer}"
        tensors |= {
            f"{p}.input_layernorm.weight": random.norm(hidden),
            f"{p}.self_attn.q_a_proj.weight": random.matrix(q_rank, hidden),
            f"{p}.self_attn.q_a_layernorm.weight": random.norm(q_rank),
            f"{p}.self_attn.q_b_proj.weight": random.matrix(heads * (nope + rope), q_rank),
            f"{p}.self_attn.kv_a_proj_with_mqa.weight": random.matrix(kv_rank + rope, hidden),
            f"{p}.self_attn.kv_a_layernorm.weight": random.norm(kv_rank),
            f"{p}.self_attn.kv_b_proj.weight": random.matrix(heads * (nope + v_dim), kv_rank),
            f"{p}.self_attn.o_proj.weight": random.matrix(hidden, heads * v_dim),
            f"{p}.post_attention_layernorm.weight": random.norm(hidden),
        }
        if layer < dense:
            tensors |= _gated(random, f"{p}.mlp", hidden, intermediate)
            continue
        tensors |= {
            f"{p}.mlp.gate.weight": random.matrix(experts, hidden),
            f"{p}.mlp.gate.e_score_correction_bias": random.bias(experts),
        }
        float32.add(f"{p}.mlp.gate.e_score_correction_bias")
        for expert in range(experts):
            tensors |= _gated(random, f"{p}.mlp.experts.{expert}", hidden, moe_intermediate)
        tensors |= _gated(random, f"{p}.mlp.shared_experts", hidden, moe_intermediate)
    return write_release(root, config, tensors | _end(random, vocab, hidden), float32=frozenset(float32))


def make_tiny_gpt_oss(
    root: Path, *, mxfp4: bool = True, layers: int = 2, intermediate: int = 256, vocab: int = 512, seed: int = 0
) -> Path:
    """Write a gpt-oss: attention sinks, biases everywhere, experts stacked with gate and up interleaved.

    With `mxfp4` the experts are pairs of FP4 codes with an exponent per 32 inputs; without, bf16 and input first.
    """
    hidden, heads, kv_heads, head_dim, experts = 256, 8, 2, 64, 8
    config = COMMON | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "experts_per_token": 2,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "layer_types": ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(layers)],
        "num_attention_heads": heads,
        "num_experts_per_tok": 2,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_local_experts": experts,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "vocab_size": vocab,
    }
    if mxfp4:
        kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    random = Random(seed)
    tensors = {"model.embed_tokens.weight": random.matrix(vocab, hidden)}
    for layer in range(layers):
        p = f"model.layers.{layer}"
        tensors |= {f"{p}.input_layernorm.weight": random.norm(hidden)}
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            tensors |= {
                f"{p}.self_attn.{name}_proj.weight": random.matrix(rows * head_dim, hidden),
                f"{p}.self_attn.{name}_proj.bias": random.bias(rows * head_dim),
            }
        tensors |= {
            f"{p}.self_attn.o_proj.weight": random.matrix(hidden, heads * head_dim),
            f"{p}.self_attn.o_proj.bias": random.bias(hidden),
            f"{p}.self_attn.sinks": random.bias(heads),
            f"{p}.post_attention_layernorm.weight": random.norm(hidden),
            f"{p}.mlp.router.weight": random.matrix(experts, hidden),
            f"{p}.mlp.router.bias": random.bias(experts),
        }
        for name, rows, columns in (("gate_up_proj", 2 * intermediate, hidden), ("down_proj", hidden, intermediate)):
            expert = f"{p}.mlp.experts.{name}"
            if mxfp4:
                tensors |= {
                    f"{expert}_blocks": random.codes(experts, rows, columns // 32, 16),
                    f"{expert}_scales": random.exponents(experts, rows, columns // 32),
                }
            else:
                tensors[expert] = np.ascontiguousarray(random.matrix(experts, rows, columns).transpose(0, 2, 1))
            tensors[f"{expert}_bias"] = random.bias(experts, rows)
    return write_release(root, config, tensors | _end(random, vocab, hidden))


def _gated(random: Random, prefix: str, hidden: int, intermediate: int) -> Tensors:
    return {
        f"{prefix}.gate_proj.weight": random.matrix(intermediate, hidden),
        f"{prefix}.up_proj.weight": random.matrix(intermediate, hidden),
        f"{prefix}.down_proj.weight": random.matrix(hidden, intermediate),
    }


def _end(random: Random, vocab: int, hidden: int) -> Tensors:
    return {"model.norm.weight": random.norm(hidden), "lm_head.weight": random.matrix(vocab, hidden)}
