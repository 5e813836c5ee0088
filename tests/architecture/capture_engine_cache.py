"""Write down what vLLM's own allocator reserves for a sequence, as the truth that engine_cache.py is tested against.

Run inside an environment that has vLLM (not this project's own), once per vLLM version:

    python tests/architecture/capture_engine_cache.py > tests/data/engine_cache.json

The caches of each model's layers are written down here by hand, as vLLM's layers ask for them, with the page sizes that
its platform chooses for models with states (the arithmetic of platforms/interface.py `_align_hybrid_block_size`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from vllm.v1.core.kv_cache_utils import _max_memory_usage_bytes_from_groups, get_kv_cache_groups
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

#: Tokens of the sequence, and tokens computed at once.
CASES = ((100, 8_192), (5_000, 2_048), (32_768, 8_192), (131_072, 1), (1_048_576, 8_192))
BF16, F32, BYTES = torch.bfloat16, torch.float32, torch.uint8

Specs = dict[str, Any]


def full(heads: int, dim: int, block: int = 16) -> Any:
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=dim, dtype=BF16)


def sliding(heads: int, dim: int, window: int) -> Any:
    return SlidingWindowSpec(
        block_size=16, num_kv_heads=heads, head_size=dim, dtype=BF16, sliding_window=window, dcp_sharded=False
    )


def chunked(heads: int, dim: int, chunk: int) -> Any:
    return ChunkedLocalAttentionSpec(
        block_size=16, num_kv_heads=heads, head_size=dim, dtype=BF16, attention_chunk_size=chunk
    )


def latent(dim: int, block: int = 16) -> Any:
    return MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=dim, dtype=BF16)


def state(size: int, conv: int, page: int, tokens: int) -> Any:
    return MambaSpec(block_size=tokens, shapes=((conv,), (size,)), dtypes=(BF16, F32), page_size_padded=page)


def gpt_oss(tokens: int) -> Specs:
    return {f"{i}": full(8, 64) if i % 2 else sliding(8, 64, 128) for i in range(36)}


def gemma_4(tokens: int) -> Specs:
    return {f"{i}": full(2, 512) if i % 6 == 5 else sliding(8, 256, 1_024) for i in range(30)}


def llama_4(tokens: int) -> Specs:
    return {f"{i}": full(8, 128) if i % 4 == 3 else chunked(8, 128, 8_192) for i in range(48)}


def llama_3(tokens: int) -> Specs:
    return {f"{i}": full(8, 128) for i in range(32)}


def deepseek_v32(tokens: int) -> Specs:
    return {f"{i}.{what}": latent(dim) for i in range(61) for what, dim in (("attention", 576), ("indexer", 128))}


def minimax_m3(tokens: int) -> Specs:
    return {f"{i}.attention": full(4, 128) for i in range(60)} | {f"{i}.indexer": latent(128) for i in range(3, 60)}


def qwen3_next(tokens: int) -> Specs:
    block = 1_056
    linear = state(32 * 128 * 128, 8_192 * 3, block * 2_048, tokens)
    return {f"{i}": full(2, 256, block) if i % 4 == 3 else linear for i in range(48)}


def kimi_k3(tokens: int) -> Specs:
    block = 5_760
    linear = state(96 * 128 * 128, 3 * 96 * 128 * 3, block * 1_152, tokens)
    return {f"{i}": latent(576, block) if i % 4 == 3 or i == 92 else linear for i in range(93)}


def nemotron_3_nano(tokens: int) -> Specs:
    block, pattern = 2_096, "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    mamba = state(64 * 64 * 128, 6_144 * 3, block * 1_024, tokens)
    return {f"{i}": full(2, 128, block) if kind == "*" else mamba for i, kind in enumerate(pattern) if kind in "M*"}


def deepseek_v4(tokens: int) -> Specs:
    """In fp8_ds_mla, with the indexer's keys in 8 bits."""

    def window(dim: int, block: int, size: int, **packed: Any) -> Any:
        return SlidingWindowMLASpec(
            block_size=block, num_kv_heads=1, max_tp_shards=1, head_size=dim, dtype=BYTES if packed else F32,
            sliding_window=size, alignment=576, dcp_sharded=False, **packed,
        )  # fmt: skip

    def compressed(dim: int, ratio: int, **packed: Any) -> Any:
        return MLAAttentionSpec(
            block_size=256, num_kv_heads=1, max_tp_shards=1, head_size=dim, dtype=BYTES, tokens_per_state=ratio,
            alignment=576, **packed,
        )  # fmt: skip

    packed = {"cache_dtype_str": "fp8_ds_mla", "state_content_bytes": 584, "model_version": "deepseek_v4"}
    specs: Specs = {}
    for i, ratio in enumerate([0, 0, *[4, 128] * 20, 4]):
        specs[f"{i}.window"] = window(512, 64, 128, **packed)
        if ratio:
            specs[f"{i}.compressed"] = compressed(512, ratio, **packed)
        if ratio == 128:
            specs[f"{i}.compressor"] = window(2 * 512, 8, 128)
        if ratio == 4:
            specs[f"{i}.compressor"] = window(4 * 512, 4, 8)
            specs[f"{i}.indexer"] = compressed(132, ratio)
            specs[f"{i}.indexer.compressor"] = window(4 * 128, 4, 8)
    return specs


MODELS: dict[str, tuple[Callable[[int], Specs], str, int]] = {
    "openai__gpt-oss-120b": (gpt_oss, "LBNHC", 16),
    "google__gemma-4-26B-A4B": (gemma_4, "LBNHC", 16),
    "meta-llama__Llama-4-Maverick-17B-128E-Instruct": (llama_4, "LBNHC", 16),
    "meta-llama__Meta-Llama-3.1-8B": (llama_3, "LBNHC", 16),
    "deepseek-ai__DeepSeek-V3.2": (deepseek_v32, "LBNHC", 16),
    "MiniMaxAI__MiniMax-M3": (minimax_m3, "LBNHC", 16),
    "Qwen__Qwen3-Next-80B-A3B-Instruct": (qwen3_next, "LBNHC", 16),
    "moonshotai__Kimi-K3": (kimi_k3, "LBNHC", 16),
    "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (nemotron_3_nano, "LBNHC", 16),
    "deepseek-ai__DeepSeek-V4-Flash": (deepseek_v4, "BLNHC", 256),
}
"""Config → its layers' caches, the order of the cache's dimensions that its kernels take, tokens of a page as set."""


def reserved(specs: Specs, layout: str, tokens: int, batched: int) -> int:
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=tokens),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(
            mamba_cache_mode="none", get_resolved_kv_cache_layout=lambda: KVCacheLayout[layout]
        ),
        max_in_flight_tokens=batched,
        speculative_config=None,
        kv_transfer_config=None,
    )
    groups = get_kv_cache_groups(config, specs)
    return int(_max_memory_usage_bytes_from_groups(config, groups))


def main() -> None:
    rows = [
        {"model": name, "page": page, "tokens": tokens, "batched": batched,
         "bytes": reserved(layers(tokens), layout, tokens, batched)}
        for name, (layers, layout, page) in MODELS.items()
        for tokens, batched in CASES
    ]  # fmt: skip
    lines = ",\n".join(json.dumps(row) for row in rows)
    print(f'{{"vllm": {json.dumps(vllm.__version__)}, "reserved": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
