"""Runs in hf-mem's own environment: its KV cache for configs, by its own function. JSON in, JSON out.

The config is chosen as hf_mem/run.py of 0.5.6 does; the dtype is given, since what `auto` takes is that of the weights.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size  # type: ignore[import-not-found]


def its_config(config: dict[str, Any]) -> dict[str, Any]:
    nested = any("ForConditionalGeneration" in name for name in config.get("architectures", []))
    chosen: dict[str, Any] = config["text_config"] if nested and "text_config" in config else config
    return chosen


def answer(config: dict[str, Any], context: int, concurrency: int) -> dict[str, Any]:
    """Bytes at a context, and of one more token; or the error that it ends with (the command itself warns then, and
    leaves the cache out of its total)."""
    try:
        chosen = its_config(config)
        sizes = [
            compute_safetensors_kv_cache_size(chosen, "BF16", tokens, sequences)
            for tokens, sequences in ((context, concurrency), (context, 1), (context - 1, 1))
        ]
    except Exception as error:  # whatever it ends with is the result
        return {"error": f"{type(error).__name__}: {error}"}
    return {"bytes": sizes[0], "per_token": sizes[1] - sizes[2]}


print(json.dumps([answer(**request) for request in json.load(sys.stdin)]))
