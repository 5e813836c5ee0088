"""FlagGems' conf/operators.yaml, and the operators that do not work on a vendor's devices."""

from __future__ import annotations

import re
from typing import Any

from tasks.operators.lists.document import Document
from tasks.operators.lists.model import Entry

NAMESPACE = "flag_gems"
ENGINES = ("_C", "_C_cache_ops", "_moe_C")


def operators(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """What FlagGems has: `for` are overloads of aten, or operators of vLLM; `via` is FlagGems' own name where it is
    another. What stands for a Python function of an engine is left out, and so is what was removed."""
    content = document.mapping(document.yaml(), "the whole file")
    found: dict[str, Entry] = {}
    ids = set[str]()
    for item in document.sequence(content.get("ops"), "ops"):
        operator = document.mapping(item, "an operator")
        own = document.operator(operator.get("id"), "id")
        if own in ids:
            document.refuse(f"has two operators with the id {own}, and which of them holds is not known")
        ids.add(own)
        stage = _stage(operator.get("stages"))
        if stage.startswith("removed"):
            continue
        labels = document.words(operator.get("labels"))
        notes = [stage, "its precision is not tested" if "skip_precision_check" in labels else ""]
        note = ", ".join(note for note in notes if note) or None
        for target in document.words(operator.get("for") or [own]):
            if name := _overload(target, fused="fused" in labels):
                # Two kernels for one overload are no contradiction: it has one.
                found[name] = Entry(via=own if own != name.partition("::")[2] else None, note=note)
    return document.checked(found, "FlagGems' operators")


def _stage(stages: Any) -> str:
    """The last of `[{beta: '5.0'}, {stable: '5.3'}]`: "stable 5.3"."""
    last = stages[-1] if isinstance(stages, list) and stages else None
    if not isinstance(last, dict) or not last:
        return ""
    name, release = next(iter(last.items()))
    return f"{name} {release}" if isinstance(name, str) and isinstance(release, str | int | float) else ""


def _overload(target: str, fused: bool) -> str | None:
    space, _, name = target.partition(".")
    if space in ENGINES and re.fullmatch(r"\w+", name):
        return f"{space}::{name}"
    if target == "None" or not re.fullmatch(r"\w+(\.\w+)?", target):
        return None
    return f"{NAMESPACE if fused else 'aten'}::{target}"


def black_list(document: Document, options: dict[str, str]) -> dict[str, Entry]:
    """What of FlagGems fails on a vendor's devices, by FlagGems' own names, with the reason."""
    content = document.mapping(document.yaml(), "the whole file")
    found: dict[str, Entry] = {}
    for item in document.sequence(content.get("unsupported_operators"), "unsupported_operators"):
        operator = document.mapping(item, "an operator")
        reason = operator.get("reason")
        note = " ".join(reason.split())[:200] if isinstance(reason, str) else None
        name = f"{NAMESPACE}::{document.operator(operator.get('name'), 'name')}"
        document.add(found, name, Entry(status="missing", note=note))
    return document.checked(found, "operators that do not work")
