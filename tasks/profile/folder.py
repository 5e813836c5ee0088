"""What else lies in a model folder: tokenizer, chat template, licence. Read, never executed."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path
from typing import Any

from day0.checkpoint import PathFault, locate
from day0.strict_json import JsonFault, NotRegular, decode, read_capped
from tasks.profile.chat_formats import reasoning_format, tool_format

MAX_BYTES = 64 << 20
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json", "vocab.json")
LICENCES = ("licen[cs]e*", "copying*", "*licen[cs]e*.txt", "*licen[cs]e*.md", "use_policy*")
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_UNREADABLE = (JsonFault, NotRegular, PathFault, OSError, UnicodeDecodeError)

#: What is known of a config alone.
NO_FOLDER: dict[str, Any] = {
    "chat_template": None, "tool_format": None, "reasoning_format": None, "tokenizer": None, "tokenizer_class": None,
    "special_tokens": None, "added_tokens": None, "generation": None, "licence": None, "licence_name": None,
}  # fmt: skip


def folder_facts(root: Path) -> tuple[dict[str, Any], list[str]]:
    """Facts of a model folder (the keys of `NO_FOLDER`), and warnings about what is absent or unreadable.

    `tool_format` and `reasoning_format` are {name, vllm (the engine's parser, or None)}; `licence_name` is what the
    model card's header says.
    """
    names = sorted(os.listdir(root))
    warnings: list[str] = []
    config = _json_object(root, "tokenizer_config.json", names, warnings)
    template = _template(root, names, config, warnings)
    added = config.get("added_tokens_decoder")
    facts: dict[str, Any] = {
        "chat_template": template is not None,
        "tool_format": _format(tool_format(template)) if template else None,
        "reasoning_format": _format(reasoning_format(template)) if template else None,
        "tokenizer": next((name for name in TOKENIZERS if name in names), None),
        "tokenizer_class": _text(config.get("tokenizer_class")),
        "special_tokens": {key: text for key in SPECIAL if (text := _token(config.get(key))) is not None},
        "added_tokens": len(added) if isinstance(added, dict) else None,
        "generation": _generation(_json_object(root, "generation_config.json", names, warnings)),
        "licence": next((n for n in names if any(fnmatch.fnmatch(n.lower(), p) for p in LICENCES)), None),
        "licence_name": _card_licence(root, names, warnings),
    }
    if template is None:
        warnings.append("there is no chat template: chat requests cannot be served")
    elif "tools" in template and facts["tool_format"] is None:
        warnings.append(
            "the chat template takes tools, but how it writes calls is not known (configs/chat-formats.yaml)"
        )
    if not facts["tokenizer"]:
        warnings.append("there is no tokenizer that is known (" + ", ".join(TOKENIZERS) + ")")
    if not facts["licence"] and not facts["licence_name"]:
        warnings.append("there is no licence file, and no model card that names one")
    if code := [name for name in names if name.endswith(".py")]:
        warnings.append(f"there is Python code ({code[0]}), which is not executed")
    return facts, warnings


def _template(root: Path, names: list[str], config: dict[str, Any], warnings: list[str]) -> str | None:
    """The chat template's text, of a file of its own or of the tokenizer's config; of several the default one."""
    if "chat_template.jinja" in names:
        try:
            return read_capped(locate(root, "chat_template.jinja"), MAX_BYTES).decode()
        except _UNREADABLE as error:
            warnings.append(f"chat_template.jinja {error}")
            return None
    held = _json_object(root, "chat_template.json", names, warnings).get("chat_template") or config.get("chat_template")
    if isinstance(held, list):  # several, each with a name
        named = {str(item.get("name")): item.get("template") for item in held if isinstance(item, dict)}
        held = named.get("default") or next(iter(named.values()), None)
    return _text(held) or None


def _format(found: Any) -> dict[str, Any] | None:
    return None if found is None else {"name": found.name, "vllm": found.vllm}


def _generation(config: dict[str, Any]) -> dict[str, Any] | None:
    """What the release recommends for sampling."""
    kept = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample", "max_new_tokens")
    return {key: config[key] for key in kept if isinstance(config.get(key), int | float)} or None


def _card_licence(root: Path, names: list[str], warnings: list[str]) -> str | None:
    """`license` of the header of README.md, the hub's model card."""
    if "README.md" not in names:
        return None
    try:
        text = read_capped(locate(root, "README.md"), MAX_BYTES).decode(errors="replace")
    except _UNREADABLE as error:
        warnings.append(f"README.md {error}")
        return None
    header = re.match(r"---\r?\n(.*?)\n---(?:\s|\Z)", text[:100_000], re.DOTALL)
    found = {
        key: re.search(rf"^{key}:[ \t]*[\"']?([\w.\- ]+)", header[1], re.MULTILINE) if header else None
        for key in ("license_name", "license")
    }
    return next((match[1].strip() for match in found.values() if match), None)


def _json_object(root: Path, name: str, names: list[str], warnings: list[str]) -> dict[str, Any]:
    if name not in names:
        return {}
    try:
        value = decode(read_capped(locate(root, name), MAX_BYTES), infinity=True)
    except _UNREADABLE as error:
        warnings.append(f"{name} {error}")
        return {}
    if not isinstance(value, dict):
        warnings.append(f"{name} is not a JSON object")
        return {}
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _token(value: Any) -> str | None:
    """A special token's text: a string, or an object with it as `content`."""
    return _text(value.get("content") if isinstance(value, dict) else value)
