"""Stored tensors by their rules: how many, how large, what they are for, how their values are stored."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from day0.architecture.bound import BoundRule, counted_as
from day0.architecture.cuts import nbytes
from day0.architecture.dtypes import SAFETENSORS
from day0.architecture.grains import Grain
from day0.architecture.quantised import Companion

#: What stored elements are: parameters, what belongs to quantised ones, and what is none. `copies` are matrices stored
#: once more: multi-token prediction's own embedding and head, the head of a tied model.
Role = Literal["weights", "packed", "mtp", "scales", "offsets", "orders", "records", "buffers", "tables", "copies"]

_BESIDE: Mapping[str, Role] = {"scale": "scales", "offset": "offsets", "order": "orders", "whole": "records"}
_FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_EXPONENTS = ("U8", "F8_E8M0")


@dataclass(frozen=True)
class StoredGroup:
    """Tensors of one rule that are stored alike: `copies` in each of `layers` (None: outside of layers)."""

    rule: BoundRule
    companion: Companion | None
    dtype: str
    """As the safetensors format calls it."""
    shape: tuple[int, ...]
    grains: tuple[Grain, ...]
    layers: tuple[int, ...] | None
    copies: int
    mtp: bool

    @property
    def kind(self) -> str:
        """What it is counted as."""
        return counted_as(self.rule, self.mtp)

    @property
    def is_weight(self) -> bool:
        return self.companion is None or self.companion.role == "packed"

    @property
    def packed(self) -> bool:
        """Several values in one stored element."""
        return self.is_weight and math.prod(self.shape) < math.prod(self.rule.shape)

    @property
    def tensors(self) -> int:
        return self.copies * (1 if self.layers is None else len(self.layers))

    @property
    def nbytes(self) -> int:
        """Of one tensor."""
        return nbytes(self.dtype, self.shape)

    @property
    def bytes(self) -> int:
        return self.nbytes * self.tensors

    @property
    def elements(self) -> int:
        """As they are stored."""
        return math.prod(self.shape) * self.tensors

    @property
    def parameters(self) -> int:
        """Unpacked elements of weights."""
        weight = self.is_weight and self.rule.rule.kind != "buffer"
        return math.prod(self.rule.shape) * self.tensors if weight else 0


@dataclass(frozen=True)
class Amount:
    """How much there is of something. `parameters` are counted unpacked, `elements` as they are stored."""

    tensors: int = 0
    elements: int = 0
    bytes: int = 0
    parameters: int = 0

    def with_group(self, group: StoredGroup) -> Amount:
        return Amount(
            self.tensors + group.tensors,
            self.elements + group.elements,
            self.bytes + group.bytes,
            self.parameters + group.parameters,
        )


@dataclass(frozen=True)
class Stored:
    """Everything that is stored of a model."""

    groups: tuple[StoredGroup, ...]
    source: Literal["headers", "config"]
    tied: bool = False
    """The output head is the embedding; one that is stored all the same is a copy."""

    @cached_property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)

    @cached_property
    def elements(self) -> int:
        """As they are stored."""
        return sum(group.elements for group in self.groups)

    @cached_property
    def parameters(self) -> int:
        """Of the model itself: without multi-token prediction, and without what is stored once more."""
        return sum(self.by_role[role].parameters for role in ("weights", "packed") if role in self.by_role)

    @cached_property
    def by_role(self) -> Mapping[Role, Amount]:
        """Every tensor once; the elements add up to those of the headers."""
        found: dict[Role, Amount] = {}
        for group in self.groups:
            role = self.role(group)
            found[role] = found.get(role, Amount()).with_group(group)
        return found

    def role(self, group: StoredGroup) -> Role:
        own = group.rule.rule.kind
        if not group.is_weight and group.companion and group.companion.role:
            return _BESIDE[group.companion.role]
        if own == "buffer":
            return "buffers" if group.dtype in SAFETENSORS else "tables"
        if self.copied(group):
            return "copies"
        if group.mtp:
            return "mtp"
        return "packed" if group.packed else "weights"

    def copied(self, group: StoredGroup) -> bool:
        """Whether a weight is the model's embedding or head once more."""
        if group.mtp:
            return group.rule.shape == self._embedding
        return self.tied and group.rule.rule.kind == "head" and group.rule.shape == self._embedding

    @cached_property
    def _embedding(self) -> tuple[int, ...]:
        shapes = (g.rule.shape for g in self.groups if g.rule.rule.kind == "embedding" and not g.mtp)
        return next((shape for shape in shapes if len(shape) == 2), ())

    def format_of(self, rule: BoundRule) -> str:
        """How most values of a rule's weights are stored: `bfloat16`, `float32`, `fp8`, `fp8_block`, `mxfp8`,
        `mxfp4`, `nvfp4`, `int8`, `int4`, or the dtype's own name where it is none of these."""
        counts: Counter[str] = Counter()
        for group in self._of_rule.get(rule, ()):
            if group.is_weight:
                counts[self.group_format(group)] += group.tensors
        return counts.most_common(1)[0][0] if counts else "absent"

    def formats(self, kind: str | None = None) -> dict[str, int]:
        """Parameters by how they are stored, most first; of one kind, or of all."""
        counts: Counter[str] = Counter()
        for group in self.groups:
            if group.parameters and kind in (None, group.kind):
                counts[self.group_format(group)] += group.parameters
        return dict(counts.most_common())

    def group_format(self, group: StoredGroup) -> str:
        """How the values of one group of weights are stored."""
        scale = next((beside for beside in self.beside(group) if beside.companion and _is_scale(beside)), None)
        return _format(group, scale)

    def beside(self, group: StoredGroup) -> Iterator[StoredGroup]:
        """What stands beside a group of weights."""
        for other in self._of_rule.get(group.rule, ()):
            if not other.is_weight and other.mtp == group.mtp and meet(other.layers, group.layers):
                yield other

    @cached_property
    def _of_rule(self) -> Mapping[BoundRule, list[StoredGroup]]:
        found: dict[BoundRule, list[StoredGroup]] = defaultdict(list)
        for group in self.groups:
            found[group.rule].append(group)
        return found


def meet(some: tuple[int, ...] | None, others: tuple[int, ...] | None) -> bool:
    """Whether two groups have a layer in common."""
    if some is None or others is None:
        return some is others
    return some is others or not set(some).isdisjoint(others)


def _is_scale(group: StoredGroup) -> bool:
    return group.companion is not None and group.companion.role == "scale"


def _format(group: StoredGroup, scale: StoredGroup | None) -> str:
    if group.dtype in SAFETENSORS:
        return SAFETENSORS[group.dtype]
    if group.dtype in _FP8:
        if scale is None:
            return "fp8"
        sizes = [grain.size for grain in scale.grains[-2:]]
        if scale.dtype in _EXPONENTS and sizes == [1, 32]:
            return "mxfp8"
        return "fp8_block" if len(sizes) == 2 and max(sizes) > 1 else "fp8"
    if group.dtype == "F4" or (group.packed and group.dtype in ("U8", "I8")):
        return "nvfp4" if scale is not None and scale.dtype == "F8_E4M3" else "mxfp4"
    if group.packed and group.dtype in ("I32", "U32"):
        return "int4" if math.prod(group.rule.shape) > 4 * math.prod(group.shape) else "int8"
    return {"I8": "int8", "U8": "uint8"}.get(group.dtype, group.dtype)
