"""What the operator scan is asked: a target's operators, and the lengths to scan at."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from day0.artifacts.base import Frozen, Settings
from day0.config import named_config
from day0.home import configs
from day0.target import Target

_LISTED = re.compile(r"\w+::\w+(\.(\w+|\*))?")


class TargetOperators(Frozen):
    """How to tell which operators a target has: configs/operators/NAME.yaml."""

    provider: Literal["dispatcher", "list"]
    """`dispatcher`: ask the torch installed here. `list`: the names in `operators`."""
    dispatch_key: str | None = None
    """For `dispatcher`: torch's name of the backend, such as CPU or CUDA."""
    operators: tuple[str, ...] = ()
    """For `list`: overloads as torch prints them (`aten::mul.Tensor`); `aten::mul.*` is every overload."""
    complete: bool = True
    """For `list`: an operator that is not listed is not there. False: it is not known."""
    fallback: Literal["CPU"] | None = None
    """Where the backend runs an operator that it lacks."""
    flops_per_byte: PositiveFloat | None = None
    """FLOPs that the target computes in the time it moves one byte; weighs the two in an operator's share. Only
    where the target's own config gives no rates."""
    source: str = Field(min_length=1)
    """Where the list, or the way of asking, is from."""

    @field_validator("operators")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((name for name in names if not _LISTED.fullmatch(name)), None)
        if wrong is not None:
            raise ValueError(
                f"{wrong!r} is not an operator's name; write it as aten::mul.Tensor, aten::mm or aten::mul.*"
            )
        return names

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        if self.provider == "dispatcher" and (self.dispatch_key is None or self.operators):
            raise ValueError("provider dispatcher needs dispatch_key and takes no operators")
        if self.provider == "list" and (self.dispatch_key is not None or not self.operators):
            raise ValueError("provider list needs operators and takes no dispatch_key")
        return self


class OperatorSettings(Settings):
    """One scan. The target's operators are held here whole: with another list the scan runs again."""

    target: str
    operators: TargetOperators
    prompt: PositiveInt = Field(default=512, le=1 << 20)
    """Tokens of the prefill."""
    context: PositiveInt = Field(default=512, le=1 << 20)
    """Tokens in the cache when decode computes one more."""
    flops_per_byte: PositiveFloat | None = None
    """The target's own, where its config has rates."""


def operator_settings(name: str, target: Target, *, prompt: int = 512, context: int = 512) -> OperatorSettings:
    """The settings for a target: its list is `configs/operators/<target.operators>.yaml`.

    Raises:
        InputError: there is no such list, or it is malformed.
    """
    flops = target.flops.get("bfloat16")
    balance = flops.value / target.bandwidth.value if flops and target.bandwidth else None
    return OperatorSettings(
        target=name,
        operators=named_config(configs() / "operators", target.operators, TargetOperators),
        prompt=prompt,
        context=context,
        flops_per_byte=balance,
    )
