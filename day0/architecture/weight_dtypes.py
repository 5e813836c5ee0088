"""What weights can be written as: configs/weight-dtypes.yaml."""

from __future__ import annotations

import difflib
import functools
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from day0.architecture.dtypes import full_name
from day0.artifacts.base import Frozen
from day0.config import load_config
from day0.errors import InputError
from day0.home import configs


class ScaleRule(Frozen):
    """The scales that a quantised weight gets; a block of 0 is the whole dimension."""

    dtype: str
    block: tuple[int, int]
    ending: str


class WeightDtype(Frozen):
    """One entry of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    kind: Literal["float", "quantised", "renamed"]
    stored: str
    conversion: str | None = None
    of: tuple[str, ...] = ()
    scale: ScaleRule | None = None
    quantization: dict[str, Any] | None = None
    ignore: str | None = None
    source: str | None = Field(default=None, alias="from")
    scales: str | None = None
    format: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {"float": (), "quantised": ("conversion", "of", "scale", "quantization", "ignore")}.get(
            self.kind, ("conversion", "source", "scales", "format")
        )
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"a weight dtype that is {self.kind} needs {missing[0]}")
        return self


class WeightDtypes(Frozen):
    """The file."""

    weight_dtypes: dict[str, WeightDtype]


@functools.lru_cache(maxsize=1)
def weight_dtypes() -> dict[str, WeightDtype]:
    """All that there are, by name."""
    return load_config(configs() / "weight-dtypes.yaml", WeightDtypes).weight_dtypes


def weight_dtype_of(text: str) -> tuple[str, WeightDtype]:
    """What a person wrote, such as `bf16`.

    Raises:
        InputError: there is no such dtype; names the nearest.
    """
    name = full_name(text)
    known = weight_dtypes()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise InputError(
            f"weights are not written as {text[:40]!r}; there is {', '.join(known)} (the nearest is {near[0]!r})"
        )
    return name, known[name]
