"""A layout as the arguments that vLLM and SGLang take, for one instance of the engine.

Names as in vLLM 0.32.0, engine/arg_utils.py, and SGLang, python/sglang/srt/server_args.py. Both count ranks otherwise:
vLLM's expert parallel size is always tp x dp; SGLang's tp is all ranks of a stage, which attention replicas divide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from day0.architecture.parallel import Sizes
from day0.artifacts.plan import DeviceMemory


def neutral_arguments(
    sizes: Sizes, context: int, sequences: int, batched: int, dtype: str, kv_dtype: str, cache: int
) -> dict[str, Any]:
    """What any engine is told, in neutral names. Sizes of 1 that not every model has are left out."""
    optional = {
        "data_parallel_size": sizes.dp,
        "expert_parallel_size": sizes.ep,
        "decode_context_parallel_size": sizes.dcp,
    }
    return {
        "tensor_parallel_size": sizes.tp,
        "pipeline_parallel_size": sizes.pp,
        **{name: size for name, size in optional.items() if size > 1},
        "max_model_len": context,
        "max_num_seqs": sequences,
        "max_num_batched_tokens": batched,
        "dtype": dtype,
        "kv_cache_dtype": "auto" if kv_dtype == dtype else kv_dtype,
        "kv_cache_bytes": cache,
    }


def engine_arguments(
    neutral: Mapping[str, Any], sizes: Sizes, memory: DeviceMemory, *, experts: bool, whole_towers: bool, mtp: bool
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Per engine that can run the layout its arguments, and notes: which cannot, and how many instances there are."""
    found, notes = {}, []
    if 1 < sizes.ep < sizes.tp:
        notes.append(
            f"vLLM divides experts over all tp x dp ranks or over none: ep {sizes.ep} within tp {sizes.tp} is "
            f"for SGLang"
        )
    else:
        found["vllm"] = tuple(_vllm(neutral, sizes, experts, whole_towers, mtp))
    found["sglang"] = tuple(_sglang(neutral, sizes, memory, experts, mtp))
    instances = sizes.groups if experts else 1
    if instances > 1:
        notes.append(
            f"{instances} instances of the engine, each on {sizes.devices // instances} devices: replicas that share "
            f"no experts are served side by side"
        )
    return found, notes


def _vllm(neutral: Mapping[str, Any], sizes: Sizes, experts: bool, whole_towers: bool, mtp: bool) -> list[str]:
    replicas = sizes.group_replicas if experts else sizes.dp
    arguments = ["--tensor-parallel-size", sizes.tp, "--pipeline-parallel-size", sizes.pp]
    if replicas > 1:
        arguments += ["--data-parallel-size", replicas]
    if sizes.ep > 1:
        arguments += ["--enable-expert-parallel"]
    if sizes.dcp > 1:
        arguments += ["--decode-context-parallel-size", sizes.dcp]
    if whole_towers:
        arguments += ["--mm-encoder-tp-mode", "data"]
    if mtp:
        arguments += ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}']
    arguments += [
        "--max-model-len", neutral["max_model_len"], "--max-num-seqs", neutral["max_num_seqs"],
        "--max-num-batched-tokens", neutral["max_num_batched_tokens"], "--dtype", neutral["dtype"],
        "--kv-cache-dtype", neutral["kv_cache_dtype"], "--kv-cache-memory-bytes", neutral["kv_cache_bytes"],
    ]  # fmt: skip
    return list(map(str, arguments))


def _sglang(neutral: Mapping[str, Any], sizes: Sizes, memory: DeviceMemory, experts: bool, mtp: bool) -> list[str]:
    arguments = ["--tp-size", sizes.stage_ranks, "--pp-size", sizes.pp]
    replicas = sizes.group_replicas
    if replicas > 1:
        arguments += ["--dp-size", replicas, "--enable-dp-attention"]
    elif not experts and sizes.dp > 1:
        replicas = sizes.dp
        arguments += ["--dp-size", replicas]
    if sizes.ep > 1:
        arguments += ["--ep-size", sizes.ep]
    if sizes.dcp > 1:
        arguments += ["--dcp-size", sizes.dcp]
    if mtp:
        arguments += ["--speculative-algorithm", "NEXTN"]
    # The share of the device that weights and cache take, of which the cache gets what the weights leave.
    share = math.ceil(1000 * (memory.weights + memory.kv_cache) / memory.capacity) / 1000
    cache = {"fp8": "fp8_e4m3"}.get(neutral["kv_cache_dtype"], neutral["kv_cache_dtype"])
    arguments += [
        "--context-length", neutral["max_model_len"], "--max-running-requests", neutral["max_num_seqs"] * replicas,
        "--chunked-prefill-size", neutral["max_num_batched_tokens"], "--dtype", neutral["dtype"],
        "--kv-cache-dtype", cache, "--mem-fraction-static", min(share, 0.999),
    ]  # fmt: skip
    return list(map(str, arguments))
