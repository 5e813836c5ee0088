"""Model families as data: which tensors a checkpoint has, how they split, what an engine calls them.

A family is a file in configs/families/. Everything that writes or counts tensors reads it from there, so that a new
family is a new file.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.errors import InputError
from day0.files import digest_of, sha256_file
from day0.home import configs

Kind = Literal["embedding", "head", "attention", "dense_mlp", "norm", "buffer"]
How = Literal["replicated", "vocab", "column", "row", "drop"]

#: Sizes beyond this are not believed: they only have to stay far from trouble in arithmetic.
LARGEST_SIZE = 1 << 40


class SizeRule(Frozen):
    """Where a size stands in the config, and its expression in other sizes where the config leaves it out."""

    key: str
    default: str | None = None


class Split(Frozen):
    """How tensor parallelism divides a tensor: `column` along dimension 0, `row` along dimension 1."""

    how: How
    by: str | None = None
    """The size that counts the indivisible units along the dimension; the number of heads, for one."""
    replicate: bool = False
    """With more ranks than units, neighbouring ranks share a unit."""

    @property
    def dim(self) -> int | None:
        """The divided dimension; None where nothing is divided."""
        return {"vocab": 0, "column": 0, "row": 1}.get(self.how)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.by is not None) != (self.how in ("column", "row")):
            raise ValueError(f"split {self.how!r} {'needs' if self.by is None else 'has no'} `by`")
        return self


class Target(Frozen):
    """What a layout calls a tensor. Tensors with one name are joined along dimension 0, in the order of `part`."""

    name: str
    part: int = 0


class TensorRule(Frozen):
    """One tensor, or with `{layer}` in its name one tensor a layer."""

    name: str
    kind: Kind
    shape: tuple[str, ...]
    split: Split
    stage: Literal["first", "last"] | None = None
    when: str | None = None
    optional: bool = False
    drop: str | None = None
    targets: dict[str, Target] = Field(default_factory=dict)

    @property
    def per_layer(self) -> bool:
        return "{layer}" in self.name

    def named(self, layer: int | None) -> str:
        """The tensor's name in a layer."""
        return self.name.replace("{layer}", str(layer))

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.drop is not None) != (self.split.how == "drop"):
            raise ValueError(f"{self.name}: a dropped tensor needs split drop and a reason in `drop`")
        if self.per_layer == (self.stage is not None) and self.drop is None:
            raise ValueError(f"{self.name}: give {{layer}} in the name or a stage, and not both")
        if self.split.how == "row" and len(self.shape) < 2:
            raise ValueError(f"{self.name}: a row split needs two dimensions")
        return self


class Constant(Frozen):
    """A tensor that an engine wants and no checkpoint has."""

    name: str
    dtype: Literal["F32"]
    shape: tuple[str, ...]
    value: float


class LayoutRule(Frozen):
    """What a layout wants of a family beside the tensors' names."""

    engine: str | None = None
    vocab_multiple: int = Field(default=1, ge=1)
    tied_name: str | None = None
    constants: tuple[Constant, ...] = ()


class Family(Frozen):
    """Rules for the tensors of some model types. See the comments in configs/families/llama.yaml."""

    name: str
    model_types: tuple[str, ...]
    tied: str
    sizes: dict[str, SizeRule]
    tensors: tuple[TensorRule, ...]
    layouts: dict[str, LayoutRule]

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], TensorRule]]:
        number = re.escape("{layer}")
        return [(re.compile(re.escape(rule.name).replace(number, r"(0|[1-9]\d{0,5})")), rule) for rule in self.tensors]

    def match(self, name: str) -> tuple[TensorRule, int | None]:
        """The rule for a tensor, and the layer that it lies in.

        Raises:
            InputError: no rule; names the nearest one. A tensor is never replicated or left out on a guess.
        """
        if found := self._found(name):
            return found
        plain = re.sub(r"(?<=\.)\d+(?=\.)", "{layer}", name, count=1)
        near = difflib.get_close_matches(plain, [rule.name for rule in self.tensors], n=1, cutoff=0.0)
        raise InputError(
            f"tensor {name!r} has no rule in family {self.name!r} (configs/families/{self.name}.yaml); "
            f"the nearest is {near[0]!r}"
        )

    def find(self, name: str) -> TensorRule | None:
        """The rule for a tensor, or None."""
        found = self._found(name)
        return found[0] if found else None

    def _found(self, name: str) -> tuple[TensorRule, int | None] | None:
        for pattern, rule in self._patterns:
            if found := pattern.fullmatch(name):
                return rule, int(found[1]) if found.groups() else None
        return None

    def is_tied(self, config: Mapping[str, Any]) -> bool:
        """Whether the config says that output and input embedding are one matrix."""
        return flag(config, self.tied)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for size in self.sizes.values():
            self._known(size.default or "1", f"the default of {size.key}")
        for rule in self.tensors:
            for expression in (*rule.shape, rule.split.by or "1"):
                self._known(expression, rule.name)
            for layout in rule.targets:
                if layout not in self.layouts:
                    raise ValueError(f"{rule.name}: layout {layout!r} is not among `layouts`")
        return self

    def _known(self, expression: str, where: str) -> None:
        for word in re.split(r"[*/]", expression):
            if not word.isdigit() and word not in self.sizes:
                raise ValueError(f"{where}: {word!r} is not among `sizes`")


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


@functools.lru_cache(maxsize=64)
def _load(path: Path, mtime_ns: int) -> Family:
    """A family's file, parsed once for as long as it is not edited."""
    return load_config(path, Family)


def families_digest(folder: Path | None = None) -> str:
    """SHA-256 over all family files: part of the settings of whatever is computed from them."""
    paths = sorted((folder or configs() / "families").glob("*.yaml"))
    return digest_of({path.name: sha256_file(path) for path in paths})


def resolve_sizes(family: Family, config: Mapping[str, Any]) -> dict[str, int]:
    """Every size of a family as a config states it; positive integers.

    Raises:
        InputError: a key is missing or is no size; names it.
    """
    sizes: dict[str, int] = {}
    for name, rule in family.sizes.items():
        value = config.get(rule.key)
        if value is None and rule.default is not None:
            sizes[name] = evaluate(rule.default, sizes, rule.key)
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST_SIZE:
            state = "is missing" if value is None else f"is {str(value)[:40]!r}"
            raise InputError(f"config.json: {rule.key} {state}; it must be a positive integer")
        else:
            sizes[name] = value
    return sizes


def evaluate(expression: str, sizes: Mapping[str, int], what: str) -> int:
    """A product of sizes such as `heads*head_dim`, or an exact quotient such as `hidden/heads`, left to right.

    Raises:
        InputError: a quotient is not whole; names `what` is computed and the numbers.
    """
    result = 1
    for operator, word in re.findall(r"(^|[*/])([^*/]+)", expression):
        value = int(word) if word.isdigit() else sizes[word]
        if operator != "/":
            result *= value
        elif result % value:
            raise InputError(f"config.json: {what} = {expression} is not whole: {result} is not divisible by {value}")
        else:
            result //= value
    return result


def flag(config: Mapping[str, Any], key: str) -> bool:
    """A true/false key of a config; absent or null is false.

    Raises:
        InputError: it is neither true nor false.
    """
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"config.json: {key} is {str(value)[:40]!r}; it must be true or false")
    return bool(value)
