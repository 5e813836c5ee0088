"""Model families as data: which tensors a checkpoint has, how they split, what an engine calls them.

A family is a file in configs/families/; its grammar is described in configs/families/README.md. Everything that
writes or counts tensors reads it from there, so that a new family is a new file. `bind` (bound.py) resolves a family
for one config.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from day0.architecture.expressions import words
from day0.architecture.layers import LayerSet, look_up
from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.errors import InputError
from day0.files import digest_of, sha256_file
from day0.home import configs

Kind = Literal[
    "embedding", "head", "attention", "linear_attention", "indexer", "dense_mlp", "routed_expert", "shared_expert",
    "router", "norm", "residual", "mtp", "vision", "audio", "projector", "buffer",
]  # fmt: skip
How = Literal["replicated", "vocab", "column", "row", "drop"]

#: Kinds that a plan may leave whole on every rank.
TOWERS = ("vision", "audio", "projector")

PLACEHOLDER = re.compile(r"\{(\w+)\}")


class SizeRule(Frozen):
    """Where a size is found: the first of `key` that the config has, else `default`, else a dimension of a tensor."""

    key: str | tuple[str, ...] = ()
    default: str | None = None
    """An expression in sizes that stand before this one."""
    length: bool = False
    """The config has a list with an entry each instead of a number, or besides it."""
    tensor: str | None = None
    """A tensor whose header tells the size where the config does not; with `dim`."""
    dim: int = 0
    least: int = 1

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def title(self) -> str:
        """What an error calls it."""
        return self.keys[0] if self.keys else str(self.tensor or self.default)


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
    """Where ranks share an expert each has at least so many of its rows: after its own ones zeros."""
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


class LayoutRule(Frozen):
    """What a layout wants of a family beside the tensors' names."""

    engine: str | None = None
    vocab_multiple: int = Field(default=1, ge=1)
    tied_name: str | None = None
    suffixes: dict[str, str] = Field(default_factory=dict)
    """What the layout calls the tensors beside a quantised weight: ending of the source's name → of the target's."""
    dtypes: dict[str, str] = Field(default_factory=dict)
    """What the engine holds them as, by the ending of the source's name."""
    constants: tuple[Constant, ...] = ()


class Include(Frozen):
    """Another family's rules, under other names: a language model within a model of text and images."""

    family: str
    config: str | None = None
    """The nested object that its sizes and conditions are read from; what it lacks is looked for around it."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Beginnings of its tensors' names → what they are here; the longest that fits. No entry that fits: left out."""
    targets: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The same for the names in a layout."""
    skip: tuple[str, ...] = ()
    """Rules of it (or of what it includes), by the names that they have in it, that do not apply here."""
    otherwise: str | None = None
    """The family that is included instead where the checkpoint has none of this one, but of that."""
    optional: bool = False
    """Left out where the checkpoint (or without one, the config) has none of it."""


class Family(Frozen):
    """Rules for the tensors of some model types. No model types: a fragment that others include."""

    name: str
    model_types: tuple[str, ...] = ()
    tied: str = "tie_word_embeddings"
    tied_default: bool = False
    prefixes: tuple[str, ...] = ("",)
    """What all names may begin with in a checkpoint; the first under which the first rule's tensor is found."""
    include: tuple[Include, ...] = ()
    sizes: dict[str, SizeRule] = Field(default_factory=dict)
    layer_sets: dict[str, LayerSet] = Field(default_factory=dict)
    indices: dict[str, str | None] = Field(default_factory=dict)
    """Placeholder → the size that counts it; null: as many as the checkpoint has."""
    tensors: tuple[TensorRule, ...] = ()
    layouts: dict[str, LayoutRule] = Field(default_factory=dict)

    def is_tied(self, config: Mapping[str, Any]) -> bool:
        """Whether the config says that output and input embedding are one matrix."""
        return flag(config, self.tied, self.tied_default)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for expression, where in self._expressions():
            for word in words(expression):
                if word not in self.sizes:
                    raise ValueError(f"{where}: {word!r} is not among `sizes`")
        for rule in self.tensors:
            for name in rule.placeholders:
                if name != "layer" and name not in self.indices:
                    raise ValueError(f"{rule.name}: {{{name}}} is not among `indices`")
            for name in rule.layers:
                if name != "all" and name not in self.layer_sets:
                    raise ValueError(f"{rule.name}: layer set {name!r} is not among `layer_sets`")
            for layout in rule.targets:
                if layout not in self.layouts:
                    raise ValueError(f"{rule.name}: layout {layout!r} is not among `layouts`")
        return self

    def _expressions(self) -> Iterator[tuple[str, str]]:
        for size in self.sizes.values():
            yield size.default or "1", f"the default of {size.title}"
        for name, layer_set in self.layer_sets.items():
            yield from ((word, name) for word in layer_set.size_names)
        for placeholder, count in self.indices.items():
            yield count or "1", f"index {placeholder}"
        for rule in self.tensors:
            parts = [text for segment in rule.split.segments for text in (segment.size, segment.by or "1")]
            shapes = [size for target in rule.targets.values() for size in target.expressions]
            yield from ((text, rule.name) for text in (*rule.shape, rule.split.by or "1", *parts, *shapes))
        for layout in self.layouts.values():
            yield from ((size, constant.name) for constant in layout.constants for size in constant.shape)


def find_family(config: Mapping[str, Any], folder: Path | None = None) -> Family:
    """The family that covers a config's `model_type`.

    Raises:
        InputError: no family covers it; names it and the nearest type that is covered.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError("config.json has no model_type, so its family is not known; give the model's own config.json")
    known: list[str] = []
    for path in sorted((folder or configs() / "families").glob("*.yaml")):
        family = _load(path, path.stat().st_mtime_ns)
        if model_type in family.model_types:
            return family
        known += family.model_types
    near = difflib.get_close_matches(model_type, known, n=1, cutoff=0.0)
    hint = f"the nearest known one is {near[0]!r}; " if near else ""
    raise InputError(
        f"model_type {model_type!r} has no family description; {hint}describe it in configs/families/ "
        f"(known: {', '.join(known) or 'none'})"
    )


def load_family(name: str, folder: Path | None = None) -> Family:
    """A family by its name, which is that of its file.

    Raises:
        InputError: there is none, or it is malformed.
    """
    path = (folder or configs() / "families") / f"{name}.yaml"
    if not path.is_file():
        raise InputError(f"there is no family {name!r}: {path} is missing")
    return _load(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=128)
def _load(path: Path, mtime_ns: int) -> Family:
    """A family's file, parsed once for as long as it is not edited."""
    return load_config(path, Family)


def families_digest(folder: Path | None = None) -> str:
    """SHA-256 over all family files: part of the settings of whatever is computed from them."""
    paths = sorted((folder or configs() / "families").glob("*.yaml"))
    return digest_of({path.name: sha256_file(path) for path in paths})


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
