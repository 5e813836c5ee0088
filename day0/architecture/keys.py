"""Values of a config by their keys, and conditions on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from day0.artifacts.base import Frozen
from day0.errors import InputError


def look_up(config: Mapping[str, Any], path: str) -> Any:
    """A value of a config by its key, with dots for keys of nested objects and places in lists; None where absent.

    `*` stands for any key of an object whose entries agree.
    """
    value: Any = config
    for part in path.split("."):
        if part == "*" and isinstance(value, Mapping) and value:
            value = _common(list(value.values()))
        elif isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _common(values: list[Any]) -> Any:
    """What all of some values are; of objects, the keys that all have with one value."""
    first, *others = values
    if isinstance(first, Mapping) and all(isinstance(other, Mapping) for other in others):
        return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
    return first if all(other == first for other in others) else None


def flag(config: Mapping[str, Any], key: str, absent: bool = False) -> bool:
    """A true/false key of a config; `absent` where it is left out or null.

    Raises:
        InputError: it is neither true nor false.
    """
    value = look_up(config, key)
    if value is None:
        return absent
    if not isinstance(value, bool):
        raise InputError(f"config.json: {key} is {str(value)[:40]!r}; it must be true or false")
    return value


class When(Frozen):
    """A condition on the config. In YAML a bare string is the key of a true/false value that must be true."""

    key: str
    equals: str | int | bool | tuple[str, ...] | None = None
    """What it must be, or one of several."""
    unless: str | int | bool | None = None
    """What it must not be."""
    given: bool | None = None
    """Whether the key must be there, neither null, zero, false nor empty."""
    absent: bool = False
    """What a true/false key is where the config lacks it."""

    def holds(self, config: Mapping[str, Any]) -> bool:
        value = look_up(config, self.key)
        if self.given is not None:
            return bool(value) == self.given
        if self.unless is not None:
            return bool(value != self.unless)
        if isinstance(self.equals, tuple):
            return value in self.equals
        if self.equals is not None:
            return bool(value == self.equals)
        return flag(config, self.key, self.absent)
