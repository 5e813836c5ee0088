"""A family's rule for a tensor: what it is for, its shape, how it is divided, what each layout calls it."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from day0.architecture.keys import When
from day0.artifacts.base import Frozen

Kind = Literal[
    "embedding", "head", "attention", "linear_attention", "indexer", "dense_mlp", "routed_expert", "shared_expert",
    "router", "norm", "residual", "mtp", "vision", "audio", "projector", "buffer",
]  # fmt: skip
How = Literal["replicated", "vocab", "column", "row", "drop"]

#: Kinds that a plan may leave whole on every rank.
TOWERS = ("vision", "audio", "projector")

PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Segment(Frozen):
    """A part of the divided dimension that is divided by itself: q, k and v of a fused projection."""

    size: str
    by: str | None = None
    """Counts the units that are never cut; left out: every row is one."""
    replicate: bool = False


class Split(Frozen):
    """How tensor parallelism divides a tensor: `column` along dimension 0, `row` along dimension 1, unless `axis`."""

    how: How
    by: str | None = None
    """The size that counts the indivisible units along the dimension; the number of heads, for one."""
    replicate: bool = False
    """With more ranks than units, neighbouring ranks share a unit."""
    axis: int | None = None
    segments: tuple[Segment, ...] = ()
    uneven: bool = False
    """Units that do not divide: every rank takes as many as the first, the last what is left."""

    @property
    def dim(self) -> int | None:
        """The divided dimension; None where nothing is divided."""
        usual = {"vocab": 0, "column": 0, "row": 1}.get(self.how)
        return self.axis if self.axis is not None and usual is not None else usual

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.how in ("column", "row"):
            if (self.by is None) == (not self.segments):
                raise ValueError(f"split {self.how!r} needs `by` or `segments`, and not both")
        elif self.by or self.segments or self.axis is not None or self.replicate or self.uneven:
            raise ValueError(f"split {self.how!r} has neither `by` nor `segments`, `axis`, `replicate` or `uneven`")
        return self


class Target(Frozen):
    """What a layout calls a tensor. Tensors with one name are joined along dimension 0, in the order of `part`.

    Where the source has one tensor an expert and the target's name has no `{expert}`, the experts of a rank are
    stacked in a new first dimension, and within each the parts are joined.
    """

    name: str
    part: int = 0
    also: tuple[int, ...] = ()
    """Further parts that are the same tensor again: keys that are the values too."""
    transpose: bool = False
    """The last two dimensions are exchanged."""
    halves: str | None = None
    """Of each so many rows those of even number come first: pairs that a rotation turns lie half a head apart."""
    first: str | None = None
    """The engine has the first so many rows alone, divided over the ranks."""
    least: str | None = None
    """Ranks that share an expert must have so many of its rows each: fewer the engine pads, and does not say how."""
    multiple: int = Field(default=1, ge=1)
    """What is joined is filled up with rows of zeros to a multiple, on every rank."""
    stages: Literal["own", "all"] = "own"
    """`all`: every pipeline stage of the engine holds it, whichever stage uses it."""
    others: Literal["same", "zero"] = "same"
    """`zero`: of the ranks that hold a replica only the first has its values: the engine adds up what all have."""
    dtype: str | None = None
    """What the engine holds it as, where that is not what is stored (names of the safetensors format)."""
    function: Literal["negative_exp"] | None = None
    """The engine holds this of every value, as F32: -exp(x) of Mamba's A_log."""
    view: dict[str, str] = Field(default_factory=dict)
    """Stored dtype → the engine's name for the same bytes; also of the tensors beside it."""
    suffixes: dict[str, str] = Field(default_factory=dict)
    """As in the layout, for this tensor alone."""
    shape: tuple[str, ...] | None = None
    """The engine's shape for the whole tensor, where it views the same bytes differently (after a transposition)."""

    @property
    def expressions(self) -> tuple[str, ...]:
        """All that is computed from sizes."""
        return (*(self.shape or ()), *(size for size in (self.halves, self.first, self.least) if size is not None))


def _written_out(value: Any) -> Any:
    """`when: key`, `layers: name` and `split: replicated` are short for the longer forms."""
    if not isinstance(value, dict):
        return value
    value = dict(value)
    if isinstance(value.get("layers"), str):
        value["layers"] = (value["layers"],)
    when = value.get("when")
    if when is not None:
        listed = when if isinstance(when, list | tuple) else [when]
        value["when"] = tuple({"key": item} if isinstance(item, str) else item for item in listed)
    if isinstance(value.get("split"), str):
        value["split"] = {"how": value["split"]}
    return value


class TensorRule(Frozen):
    """One tensor for each number that the placeholders in its name take."""

    name: str
    kind: Kind
    shape: tuple[str, ...]
    split: Split
    layers: tuple[str, ...] = ("all",)
    """The layer sets, together, that `{layer}` runs over."""
    experts: int | None = None
    """The dimension that counts the experts, where they are stored as one tensor."""
    stage: Literal["first", "last"] | None = None
    when: tuple[When, ...] = ()
    plain_transposed: bool = False
    """Checkpoints that are not quantised have the last two dimensions the other way round."""
    presence: Literal["required", "all_or_none", "any"] = "required"
    """`all_or_none`: in every layer (and expert) or in none; `any`: wherever the checkpoint has it."""
    drop: str | None = None
    targets: dict[str, Target] = Field(default_factory=dict)

    @property
    def placeholders(self) -> tuple[str, ...]:
        return tuple(PLACEHOLDER.findall(self.name))

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return _written_out(value)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.drop is not None) != (self.split.how == "drop"):
            raise ValueError(f"{self.name}: a dropped tensor needs split drop and a reason in `drop`")
        if ("layer" in self.placeholders) == (self.stage is not None) and self.drop is None:
            raise ValueError(f"{self.name}: give {{layer}} in the name or a stage, and not both")
        if self.split.dim is not None and self.split.dim >= len(self.shape):
            raise ValueError(f"{self.name}: dimension {self.split.dim} is split, but the shape has {len(self.shape)}")
        if self.experts is not None and "expert" in self.placeholders:
            raise ValueError(f"{self.name}: experts are numbered in the name, or one of its dimensions, not both")
        if self.kind == "routed_expert" and self.experts is None and "expert" not in self.placeholders:
            raise ValueError(f"{self.name}: every token passes it, so it is no routed expert; shared_expert")
        return self


class Constant(Frozen):
    """A tensor that an engine wants and no checkpoint has."""

    name: str
    dtype: Literal["F32", "BF16", "I32"]
    shape: tuple[str, ...]
    value: float
    layers: tuple[str, ...] = ("all",)
    when: tuple[When, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return _written_out(value)
