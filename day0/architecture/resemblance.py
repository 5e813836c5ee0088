"""Which family describes a model whose type none names: the one that explains all of it, or none.

Releases often rename a known architecture. A family is taken for an unknown `model_type` only on evidence: its rules
explain every tensor of the checkpoint, names and shapes; or, where there is only a config, it finds every key that it
needs and reads every key that looks like a size. A model that nothing explains whole is refused: a mixture of experts
counted as a dense model would be a wrong number, and a wrong number is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from day0.architecture.binding import bind
from day0.architecture.bound import BoundFamily, match_all
from day0.architecture.family import Family, all_families, find_family, is_known
from day0.architecture.unread import unread_sizes
from day0.errors import InputError
from day0.safetensors_header import TensorInfo


@dataclass(frozen=True)
class Recognised:
    """The family of a model, and, where its `model_type` is in none, on what evidence it was chosen."""

    family: Family
    evidence: str | None = None
    sure: bool = True
    """Every tensor is explained; by the config alone a choice is not sure."""


def recognise(raw: Mapping[str, Any], tensors: Mapping[str, TensorInfo] | None = None) -> Recognised:
    """The family that describes a model.

    Raises:
        InputError: no family names its `model_type` and none explains it whole; says what comes nearest and what of
            the model that leaves unexplained.
    """
    if is_known(raw):
        return Recognised(find_family(raw))
    fitting: list[BoundFamily] = []
    nearest: tuple[int, str] | None = None
    for family in all_families():
        try:
            bound = bind(family, raw, tensors)
        except InputError:
            continue
        left = _unexplained(raw, bound, tensors)
        if not left:
            fitting.append(bound)
        elif nearest is None or len(left) < nearest[0]:
            nearest = (
                len(left),
                f"the nearest family is {family.name!r}, which leaves {len(left)} unexplained, first {left[0]}",
            )
    if not fitting:
        come = nearest[1] if nearest else "none can be read from this config"
        raise InputError(
            f"model_type {str(raw.get('model_type'))[:60]!r} has no family description: {come}; describe it in "
            f"configs/families/"
        )
    chosen = max(fitting, key=lambda bound: (len(_keys_of(bound) & raw.keys()), bound.family.name))
    name = chosen.family.name
    if tensors is not None:
        return Recognised(chosen.family, f"all {len(tensors):,} tensors are those of family {name!r}")
    others = [bound.family.name for bound in fitting if bound is not chosen]
    also = f"; so do {', '.join(others[:4])}" if others else ""
    return Recognised(chosen.family, f"by its config alone family {name!r} explains every size{also}", sure=False)


def _unexplained(raw: Mapping[str, Any], bound: BoundFamily, tensors: Mapping[str, TensorInfo] | None) -> list[str]:
    if tensors is None:
        return [f"key {key}" for key in unread_sizes(raw, bound)]
    left = [f"tensor {tensor.name}" for tensor in tensors.values() if bound.find(tensor) is None]
    if left:
        return left
    try:
        match_all(bound, tensors)
    except InputError as error:
        return [str(error)]
    return []


def _keys_of(bound: BoundFamily) -> set[str]:
    return {key for size in bound.family.sizes.values() for key in size.keys}
