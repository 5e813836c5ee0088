"""Published configs and tensor tables, and configs made for a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"

LLAMA_8B = DATA / "configs/meta-llama__Meta-Llama-3.1-8B.json"
LLAMA_70B = DATA / "configs/meta-llama__Meta-Llama-3.1-70B.json"
LLAMA_405B = DATA / "configs/meta-llama__Meta-Llama-3.1-405B.json"


def read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def config(**changes: Any) -> dict[str, Any]:
    """A small Llama's config; a value of None takes the key out."""
    made = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


def write_config(folder: Path, value: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(value))
    return path
