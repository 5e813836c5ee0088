"""What the operator scan is asked: a target's operators, and the lengths to scan at."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt

from day0.artifacts.base import Settings
from day0.errors import InputError
from day0.files import sha256_file
from day0.home import configs
from day0.target import Target
from day0.target_operators import TargetOperators, operators_of


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
    operators = operators_of(target)
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
