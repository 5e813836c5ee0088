"""Which modules a quantisation config names: by name, by a part of it, by shell pattern, by regular expression.

The lists are a stranger's: what costs exponential time is not run, and is said to have been left out.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_PATTERNS = 200_000
_LONGEST = 400
#: Unbounded repetitions in one expression, and none of a group: matching then is polynomial in names of a hundred
#: characters.
_REPETITIONS = 4
_REPEATED = re.compile(r"(?<!\\)[*+{]")
_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]|\\[1-9]")


class ModuleNames:
    """A list of modules. `unread`: its entries that are not understood."""

    def __init__(self, entries: Iterable[str]) -> None:
        plain: set[str] = set()
        patterns: list[str] = []
        unread: list[str] = []
        for entry in entries:
            if entry.startswith("re:"):
                if (expression := _safe(entry[3:])) is None:
                    unread.append(entry)
                else:
                    patterns.append(f"(?:{expression})")
            elif any(mark in entry for mark in "*?["):
                patterns.append(fnmatch.translate(entry) if len(entry) <= _LONGEST else r"(?!)")
            elif entry:
                plain.add(entry.strip("."))
        self._plain = frozenset(plain)
        self._patterns = tuple(map(re.compile, patterns))
        self.unread = tuple(unread)

    def __bool__(self) -> bool:
        return bool(self._plain or self._patterns)

    def match(self, module: str) -> bool:
        """Whether it names a module, or one that it is part of, or a part of its name (`gate` for `mlp.gate`)."""
        return any(part in self._plain for part in parts_of(module)) or any(
            pattern.match(module) for pattern in self._patterns
        )


class ModuleMap(Generic[T]):
    """Modules by name, each with something. The longest name that a module is or is part of decides."""

    def __init__(self, entries: Mapping[str, T]) -> None:
        self._entries = dict(entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def get(self, module: str) -> T | None:
        """What the module has, or None."""
        found = [part for part in parts_of(module) if part in self._entries]
        return self._entries[max(found, key=len)] if found else None


@functools.lru_cache(maxsize=1 << 14)
def parts_of(module: str) -> Sequence[str]:
    """A module's name and every run of its components, the longest first."""
    names = module.split(".")
    count = len(names)
    return [
        ".".join(names[start : start + length]) for length in range(count, 0, -1) for start in range(count - length + 1)
    ]


def _safe(expression: str) -> str | None:
    """An expression that cannot take long, or None."""
    if len(expression) > _LONGEST or _REPEATED_GROUP.search(expression):
        return None
    if len(_REPEATED.findall(expression)) > _REPETITIONS:
        return None
    try:
        re.compile(expression)
    except re.error:
        return None
    return expression
