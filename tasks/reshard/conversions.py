"""Which conversion each weight needs, by how it is stored and what is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from day0.architecture.bound import BoundFamily, Match
from tasks.reshard.cuts import Cutter
from tasks.reshard.units import Unit, as_stored


@dataclass
class Chosen:
    """Every unit, and what the config must say for them."""

    units: list[Unit]
    config_changes: Mapping[str, Any] = field(default_factory=dict)


def choose_conversions(
    matches: Sequence[Match], bound: BoundFamily, weight_dtype: str | None, cutter: Cutter
) -> Chosen:
    """The units of a checkpoint, converted to `weight_dtype` where one is asked for and they are stored otherwise."""
    if weight_dtype is None:
        return Chosen([as_stored(match, cutter) for match in matches])
    raise NotImplementedError
