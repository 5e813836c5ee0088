"""What the operator scan is asked: a target's operators, and the lengths to scan at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from day0.artifacts.base import Frozen, Settings
from day0.config import named_config
from day0.errors import InputError
from day0.files import sha256_file
from day0.home import configs
from day0.target import Target

_LISTED = re.compile(r"\w+::\w+(\.(\w+|\*))?")


class TargetOperators(Frozen):
    """How to tell which operators a target has: configs/operators/NAME.yaml."""

    dispatch_key: str | None = None
    """torch's name of the backend, such as CPU or CUDA: what is registered for it is asked of the torch installed."""
    torch_build: str | None = None
    """A regular expression for the version of a torch that is the target's own; others are not asked."""
    torch_plugin: str | None = None
    """The package without which the installed torch is not the target's."""
    lists: tuple[str, ...] = ()
    """Names of files in configs/operators/lists/."""
    operators: tuple[str, ...] = ()
    """A list in place: overloads as torch prints them (`aten::mul.Tensor`); `aten::mul.*` is every overload."""
    complete: bool = True
    """What no list names is not there. False: it is not known."""
    fallback: Literal["CPU"] | None = None
    """Where the backend runs an operator that it lacks."""
    graph_capture: str | None = None
    """What says that a graph with such an operator cannot be captured; left out where that is not known."""
    flops_per_byte: PositiveFloat | None = None
    """FLOPs that the target computes in the time it moves one byte; weighs the two in an operator's share. Only
    where the target's own config gives no rates."""
    source: str = Field(min_length=1)
    """Where the list, or the way of asking, is from; where there is no list, what was looked for."""

    @field_validator("operators")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((name for name in names if not _LISTED.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(
                f"{wrong!r} is not an operator's name; write it as aten::mul.Tensor, aten::mm or aten::mul.*"
            )
        return names

    @field_validator("torch_build")
    @classmethod
    def _pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _tells(self) -> Self:
        if self.dispatch_key is None and not self.lists and not self.operators:
            raise ValueError("needs dispatch_key, lists or operators: without any, nothing can be told")
        return self


class OperatorSettings(Settings):
    """One scan. What tells the target's operators is held here whole, its lists by
    their digests: with another list the scan runs again."""

    target: str
    operators: TargetOperators
    lists: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the lists that `operators` names."""
    prompt: PositiveInt = Field(default=512, le=1 << 20)
    """Tokens of the prefill."""
    context: PositiveInt = Field(default=512, le=1 << 20)
    """Tokens in the cache when decode computes one more."""
    flops_per_byte: PositiveFloat | None = None
    """The target's own, where its config has rates."""
    rates: dict[str, PositiveFloat] = Field(default_factory=dict)
    """The target's matrix FLOPs per second by dtype."""
    bandwidth: PositiveFloat | None = None
    """Of the target's memory, bytes per second."""
    fused: tuple[str, ...] = ()
    """Names under which configs/patterns.yaml has what the target has fused: its engines and its list."""
    graph: bool = False
    """Export the model's graph too, and look for patterns in it."""


def operator_settings(
    name: str, target: Target, *, prompt: int = 512, context: int = 512, graph: bool = False
) -> OperatorSettings:
    """The settings for a target: its list is `configs/operators/<target.operators>.yaml`.

    Raises:
        InputError: there is no such file, it is malformed, or it names a list that is not there.
    """
    operators = named_config(configs() / "operators", target.operators, TargetOperators)
    folder = configs() / "operators" / "lists"
    flops = target.flops.get("bfloat16")
    balance = flops.value / target.bandwidth.value if flops and target.bandwidth else None
    return OperatorSettings(
        target=name,
        operators=operators,
        lists={one: _digest(folder, one) for one in operators.lists},
        prompt=prompt,
        context=context,
        flops_per_byte=balance,
        rates={dtype: rate.value for dtype, rate in target.flops.items()},
        bandwidth=target.bandwidth.value if target.bandwidth else None,
        fused=(*target.engines, target.operators),
        graph=graph,
    )


def _digest(folder: Path, name: str) -> str:
    path = folder / f"{name}.yaml"
    if not path.is_file() or path.parent != folder:
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise InputError(f"no operator list named {name!r} in {folder}; there is: {known}")
    return sha256_file(path)
