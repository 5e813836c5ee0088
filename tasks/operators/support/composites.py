"""What torch's own kernels for any device call: a device without a kernel of its own has them if it has those."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

from day0.artifacts.base import Frozen
from day0.config import read_yaml
from tasks.operators.costs import work_class

#: Work that a kernel of its own is needed for; views, allocations and copies beside it make no difference.
COMPUTES = ("elementwise", "reduction", "gather", "scatter", "product", "attention")


class Composite(Frozen):
    """A kernel of torch that calls other operators."""

    parts: tuple[str, ...] = ()
    one_of: Mapping[str, tuple[str, ...]] = {}
    """By dispatch key kernels of which it takes one, by the shapes; no parts are called where the device has any."""
    each: str | None = None
    """How often each part is called, where that is more than once."""
    reads_host: bool = False
    """It waits for a value that it reads on the host."""
    keys: tuple[str, ...] = ()
    """On devices of these dispatch keys only; empty: on all."""


@functools.cache
def composites() -> Mapping[str, Composite]:
    """composites.yaml, by overload."""
    table = read_yaml(Path(__file__).with_name("composites.yaml"))
    return {name: Composite.model_validate(content) for name, content in table.items()}


def made_of(overload: str, key: str | None) -> Composite | None:
    """What torch's kernel of an overload calls on a device of this key; None: nothing that a device may lack."""
    found = composites().get(overload)
    return found if found and (not found.keys or key in found.keys) else None


def choice_of(overload: str, key: str | None) -> tuple[str, ...]:
    """The kernels of which one is what an overload becomes on a device of this key, if the device has any of them."""
    found = composites().get(overload)
    return found.one_of.get(key or "", ()) if found else ()


def parts_of(names: Iterable[str]) -> set[str]:
    """What these become, and what that becomes."""
    found: set[str] = set()
    left = list(names)
    while left:
        made = composites().get(left.pop(), Composite())
        parts = {*made.parts, *(one for those in made.one_of.values() for one in those)}
        left += parts - found
        found |= parts
    return found


def computing(via: str) -> str:
    """Of the parts that `via` names those that compute, or all where none does."""
    return ", ".join(part for part in via.split(", ") if work_class(part.partition(" ")[0]) in COMPUTES) or via


def is_several(parts: Iterable[str]) -> bool:
    """Whether a composite of these computes in more than one kernel."""
    return sum(work_class(part) in COMPUTES for part in parts) > 1
