"""What else lies in a model folder: tokenizer, chat template, licence. Read, never executed."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import Any

from day0.checkpoint import PathFault, locate
from day0.strict_json import JsonFault, NotRegular, decode, read_capped

MAX_BYTES = 64 << 20
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
LICENCES = ("licen[cs]e*", "copying*", "*licen[cs]e*.txt", "*licen[cs]e*.md", "use_policy*")
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def folder_facts(root: Path) -> tuple[dict[str, Any], list[str]]:
    """`chat_template`, `tokenizer`, `special_tokens`, `licence`, and warnings about what is absent or unreadable."""
    names = sorted(os.listdir(root))
    warnings: list[str] = []
    config = _json_object(root, "tokenizer_config.json", names, warnings)
    templates = [name for name in names if name in ("chat_template.jinja", "chat_template.json")]
    facts: dict[str, Any] = {
        "chat_template": bool(templates) or bool(config.get("chat_template")),
        "tokenizer": next((name for name in TOKENIZERS if name in names), None),
        "special_tokens": {key: text for key in SPECIAL if (text := _token(config.get(key))) is not None},
        "licence": next((n for n in names if any(fnmatch.fnmatch(n.lower(), p) for p in LICENCES)), None),
    }
    if not facts["chat_template"]:
        warnings.append("there is no chat template: chat requests cannot be served")
    if not facts["tokenizer"]:
        warnings.append("there is no tokenizer that is known (" + ", ".join(TOKENIZERS) + ")")
    if not facts["licence"]:
        warnings.append("there is no licence file")
    if code := [name for name in names if name.endswith(".py")]:
        warnings.append(f"there is Python code ({code[0]}), which is not executed")
    if "hf_quant_config.json" in names:
        warnings.append("there is an hf_quant_config.json: the weights may be quantised although the config is silent")
    return facts, warnings


def _json_object(root: Path, name: str, names: list[str], warnings: list[str]) -> dict[str, Any]:
    if name not in names:
        return {}
    try:
        value = decode(read_capped(locate(root, name), MAX_BYTES), infinity=True)
    except (JsonFault, NotRegular, PathFault, OSError) as error:
        warnings.append(f"{name} {error}")
        return {}
    if not isinstance(value, dict):
        warnings.append(f"{name} is not a JSON object")
        return {}
    return value


def _token(value: Any) -> str | None:
    """A special token's text: a string, or an object with it as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
