"""Malformed text: empty, undecodable, with control tokens showing, or a salad of scripts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

#: Written together in ordinary text, so they count as one.
_TOGETHER = {"CJK": "EAST ASIAN", "HIRAGANA": "EAST ASIAN", "KATAKANA": "EAST ASIAN", "HANGUL": "EAST ASIAN"}
MIN_LETTERS = 40
SALAD_SCRIPTS = 4
SALAD_SHARE = 0.03


def faults(
    text: str,
    finish_reason: str,
    *,
    special_tokens: Iterable[str],
    leaks: Iterable[str],
    asked: str,
    multilingual: bool,
) -> list[str]:
    """What is wrong with a text that a user would read; `asked` is the prompt, whose own markers are no leak."""
    found = []
    if not text.strip():
        found.append(f"the text is empty (finish_reason {finish_reason})")
    # an answer cut off by its length may end within a character
    whole = text.rstrip("\ufffd") if finish_reason == "length" else text
    if "\ufffd" in whole:
        found.append(f"{whole.count(chr(0xFFFD))} characters could not be decoded (U+FFFD)")
    if control := sorted({c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\r\t"}):
        found.append(f"control characters: {', '.join(f'U+{ord(c):04X}' for c in control)}")
    leaked = {token for token in special_tokens if token in text}
    for pattern in leaks:
        leaked |= {match.group() for match in re.finditer(pattern, text)}
    if leaked := {token for token in leaked if token not in asked}:
        found.append(f"control tokens show in the text: {', '.join(sorted(leaked))}")
    if not multilingual and (mixed := _scripts(text)):
        found.append(f"a mixture of scripts: {', '.join(mixed)}")
    return found


def _scripts(text: str) -> list[str]:
    """The scripts of a text that mixes too many, else nothing."""
    names = (unicodedata.name(c, "UNKNOWN").split()[0] for c in text if c.isalpha())
    counts = Counter(_TOGETHER.get(name, name) for name in names)
    total = sum(counts.values())
    if total < MIN_LETTERS:
        return []
    used = sorted(name for name, count in counts.items() if count / total >= SALAD_SHARE)
    return used if len(used) >= SALAD_SCRIPTS else []
