"""The tables of configs/quantization.yaml: methods of quantisation, and the forms in which they store weights."""

from __future__ import annotations

import functools
from typing import Self

from pydantic import model_validator

from day0.architecture.keys import When
from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.home import configs


class Part(Frozen):
    """One tensor of a form. See configs/quantization.yaml for the fields."""

    ending: str
    stacked: str | None = None
    dtype: str
    blocks: tuple[int | str, int | str] | None = None
    last: int | None = None
    shape: tuple[int, ...] | None = None
    order: bool = False
    static: bool = False


class Form(Frozen):
    """How a weight is stored."""

    format: str
    weight: Part
    beside: tuple[Part, ...]


class Method(Frozen):
    form: str | None = None
    unblocked: str | None = None
    """The form where the config gives no block size."""
    kinds: str
    excluded: tuple[str, ...]


class Variant(Frozen):
    form: str
    instead: str
    when: When
    names: tuple[str, ...] = ()


class Scheme(Frozen):
    type: str
    bits: int | None = None
    strategy: str | None = None
    format: str | None = None
    form: str


class Algorithm(Frozen):
    form: str
    static: bool = False


class PlainRule(Frozen):
    names: tuple[str, ...]
    dtype: str
    when: When | None = None


class Quantizations(Frozen):
    """The file configs/quantization.yaml."""

    forms: dict[str, Form]
    methods: dict[str, Method]
    kinds: dict[str, frozenset[str]]
    variants: tuple[Variant, ...]
    schemes: tuple[Scheme, ...]
    algorithms: dict[str, Algorithm]
    cache: dict[str, str]
    kept: dict[str, tuple[str, ...]]
    plain: tuple[PlainRule, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        named = [m.form for m in self.methods.values()] + [m.unblocked for m in self.methods.values()]
        named += [v.form for v in self.variants] + [v.instead for v in self.variants]
        named += [s.form for s in self.schemes] + [a.form for a in self.algorithms.values()]
        if wrong := [name for name in named if name is not None and name not in self.forms]:
            raise ValueError(f"{wrong[0]!r} is not among `forms`")
        if wrong := [m.kinds for m in self.methods.values() if m.kinds not in self.kinds]:
            raise ValueError(f"{wrong[0]!r} is not among `kinds`")
        return self


@functools.lru_cache(maxsize=1)
def quantizations() -> Quantizations:
    """The known methods and forms."""
    return load_config(configs() / "quantization.yaml", Quantizations)
