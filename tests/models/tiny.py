"""Small random releases, made without torch: what they share, and a Llama. Other families: tests/models/families.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from day0.files import write_json
from tests.models.layout import CHAT_TEMPLATE, write_hashes, write_index
from tests.models.safetensors_file import write_file

WORDS = ("the", "capital", "of", "france", "is", "paris", "what", "hello", "world", "one", "two", "three")


def make_tiny_llama(
    root: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 512,
    shards: int = 2,
    tied: bool = False,
    seed: int = 0,
) -> Path:
    """Write a release of a random Llama in bf16 to `root`, with tokenizer, chat template, index and hashes."""
    intermediate, head_dim = 2 * hidden, hidden // heads
    tensors = _random_tensors(layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, tied, seed)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return write_release(root, config, tensors, shards=shards)


def write_release(
    root: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    shards: int = 2,
    float32: frozenset[str] = frozenset(),
    fp8: frozenset[str] = frozenset(),
) -> Path:
    """Write tensors and config as a release: shards, index, tokenizer, chat template and hashes.

    Floats are stored as bf16, but those named in `float32`; bytes as they are, those named in `fp8` as F8_E4M3.
    """
    root.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    stored = {name: _stored(name, array, float32, fp8) for name, array in tensors.items()}
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        described = {name: (stored[name][0], tensors[name].shape) for name in part}
        write_file(root / file, described, (stored[name][1] for name in part))
        weight_map |= dict.fromkeys(part, file)
    write_index(root, weight_map, sum(len(data) for _, data in stored.values()))
    write_json(root / "config.json", dict(config))
    _write_tokenizer(root, config["vocab_size"])
    write_json(root / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    write_hashes(root)
    return root


def _stored(name: str, array: np.ndarray, float32: frozenset[str], fp8: frozenset[str]) -> tuple[str, bytes]:
    if array.dtype == np.uint8:
        return ("F8_E4M3" if name in fp8 else "U8"), array.tobytes()
    return ("F32", array.astype("<f4").tobytes()) if name in float32 else ("BF16", to_bf16(array))


def to_bf16(array: np.ndarray) -> bytes:
    """The upper half of each float32, rounded to nearest even."""
    bits = array.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _random_tensors(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocab: int,
    tied: bool,
    seed: int,
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden)}
    for layer in range(layers):
        p = f"model.layers.{layer}"
        tensors |= {
            f"{p}.input_layernorm.weight": 1 + 0.1 * matrix(1, hidden)[0],
            f"{p}.self_attn.q_proj.weight": matrix(heads * head_dim, hidden),
            f"{p}.self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden),
            f"{p}.self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden),
            f"{p}.self_attn.o_proj.weight": matrix(hidden, heads * head_dim),
            f"{p}.post_attention_layernorm.weight": 1 + 0.1 * matrix(1, hidden)[0],
            f"{p}.mlp.gate_proj.weight": matrix(intermediate, hidden),
            f"{p}.mlp.up_proj.weight": matrix(intermediate, hidden),
            f"{p}.mlp.down_proj.weight": matrix(hidden, intermediate),
        }
    tensors["model.norm.weight"] = 1 + 0.1 * matrix(1, hidden)[0]
    if not tied:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    return tensors


def _write_tokenizer(root: Path, vocab: int) -> None:
    """A word-level tokenizer of `vocab` entries: special tokens, a few words, then filler words."""
    specials = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    words = [*specials, *WORDS, "user", "assistant", "system"]
    words += [f"w{i}" for i in range(vocab - len(words))]
    write_json(
        root / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": i,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for i, token in enumerate(specials)
            ],
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": "<unk>"},
        },
    )
    write_json(
        root / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": 1024,
        },
    )
    (root / "chat_template.jinja").write_text(CHAT_TEMPLATE)
