"""How quantised weights are stored, as data: configs/quantised.yaml.

Whoever matches a checkpoint's tensors to a family takes the companions from here, which stand beside a weight or in its
place; whoever verifies one takes the formats, which say what belongs together. Names are matched from their end, never
by substring, and a dtype is tested, not its width.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.home import configs

Role = Literal["packed", "scale", "offset", "whole", "order"]

#: The ends of the names of weights that are stored under their own name.
_PLAIN = ("", ".weight")


class Companion(Frozen):
    """What a tensor is whose name ends so. See configs/quantised.yaml for the fields."""

    ending: str
    of: tuple[str, ...] = ()
    role: Role | None = None
    transposed: bool = False
    single: bool = False
    alone: frozenset[str] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.of) != (self.role is not None):
            raise ValueError(f"{self.ending}: `of` and `role` go together")
        return self


class Format(Frozen):
    """One way of storing a quantised weight. See configs/quantised.yaml for the fields."""

    weight: str
    dtypes: frozenset[str]
    scale: str
    scales: frozenset[str]
    law: tuple[str, ...]
    sure: bool = True
    also: tuple[str, ...] = ()
    may: tuple[str, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        """Endings of every tensor that stands beside the weight."""
        return (self.scale, *self.also, *self.may)


class Quantised(Frozen):
    """The file configs/quantised.yaml."""

    companions: tuple[Companion, ...]
    formats: tuple[Format, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        roles = {companion.ending: companion.role for companion in self.companions}
        if len(roles) < len(self.companions):
            raise ValueError("an ending is listed twice among `companions`")
        for found in self.formats:
            for ending in (found.weight, *found.beside):
                if ending not in roles and not (ending == found.weight and ending in _PLAIN):
                    raise ValueError(f"{ending!r}, of the weights {found.weight!r}, is not among `companions`")
            if roles.get(found.weight) not in (None, "packed"):
                raise ValueError(f"{found.weight!r} is a weight's ending, but its role is {roles[found.weight]}")
            if roles[found.scale] not in (None, "scale"):
                raise ValueError(f"{found.scale!r} is a scale's ending, but its role is {roles[found.scale]}")
        return self


@functools.lru_cache(maxsize=1)
def quantised() -> Quantised:
    """The known companions and formats."""
    return load_config(configs() / "quantised.yaml", Quantised)


@functools.lru_cache(maxsize=1)
def companions() -> tuple[Companion, ...]:
    """The companions that follow their weight however it is divided, the longest ending first."""
    listed = [companion for companion in quantised().companions if companion.role]
    return tuple(sorted(listed, key=lambda companion: -len(companion.ending)))


def weight_names(name: str) -> Iterator[tuple[str, Companion]]:
    """The names that the weight of a companion tensor may have, with what the tensor then is."""
    for companion in companions():
        if name.endswith(companion.ending):
            stem = name.removesuffix(companion.ending)
            for base in companion.of:
                yield stem + base, companion
