"""Model families as data: which tensors a checkpoint has, how they split, what an engine calls them.

A family is a file in configs/families/; its grammar is described in configs/families/README.md. Everything that
writes or counts tensors reads it from there, so that a new family is a new file. `bind` (bound.py) resolves a family
for one config.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from day0.architecture.decoder_rules import DecoderRules
from day0.architecture.expressions import words
from day0.architecture.keys import flag
from day0.architecture.layers import LayerSet
from day0.architecture.rules import Constant, TensorRule
from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.errors import InputError
from day0.files import digest_of, sha256_file
from day0.home import configs


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
    """Rules of it (or of what it includes), by the names that they have in it, that do not apply here; `attention`,
    `routing` or `position` leaves out what it says of those."""
    otherwise: str | None = None
    """The family that is included instead where the checkpoint has none of this one, but of that."""
    optional: bool = False
    """Left out where the checkpoint (or without one, the config) has none of it."""


class Family(DecoderRules):
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
    unused: dict[str, str] = Field(default_factory=dict)
    """Keys that look like sizes and change nothing in these models, each with why."""

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
        self.check(self.sizes, self.layer_sets)
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


def all_families(folder: Path | None = None) -> tuple[Family, ...]:
    """Every family that stands for model types of its own, by name."""
    paths = sorted((folder or configs() / "families").glob("*.yaml"))
    return tuple(family for path in paths if (family := _load(path, path.stat().st_mtime_ns)).model_types)


def is_known(config: Mapping[str, Any]) -> bool:
    """Whether some family names the config's `model_type`."""
    return any(config.get("model_type") in family.model_types for family in all_families())


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


def families_digest() -> str:
    """SHA-256 over what tells a checkpoint's tensors apart: part of the settings of whatever is computed from it."""
    beside = [configs() / name for name in ("quantised.yaml", "quantization.yaml", "weight-dtypes.yaml")]
    paths = [*sorted((configs() / "families").glob("*.yaml")), *beside]
    return digest_of({path.name: sha256_file(path) for path in paths})
