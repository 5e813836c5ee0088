"""What the operator scan is asked: a target's operators, and the lengths to scan at."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, PositiveFloat, PositiveInt

from day0.artifacts.base import Settings
from day0.devices import DeviceAbsent, hardware
from day0.errors import InputError
from day0.files import sha256_file
from day0.home import configs
from day0.target import Target
from day0.target_operators import Device, TargetOperators, operators_of


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
    trace_limit: PositiveFloat = 600.0
    """Seconds for tracing the model."""
    measure: bool | None = None
    """Run the operators on the target's device. None: where it is here. True: it must be."""
    measure_limit: PositiveFloat = 600.0
    """Seconds for that."""
    hardware: str | None = None
    """What the target's device calls itself, where it is here: what is measured on another is measured anew."""
    absent: str = ""
    """Why it is not here."""
    graph: bool = False
    """Export the model's graph too, and look for patterns in it."""


def operator_settings(
    name: str,
    target: Target,
    *,
    prompt: int = 512,
    context: int = 512,
    graph: bool = False,
    measure: bool | None = None,
) -> OperatorSettings:
    """The settings for a target: its list is `configs/operators/<target.operators>.yaml`.

    Whether its device is here is asked now, unless `measure` is False.

    Raises:
        InputError: there is no such file, it is malformed, or it names a list that is not there.
    """
    operators = operators_of(target)
    folder = configs() / "operators" / "lists"
    flops = target.flops.get("bfloat16")
    balance = flops.value / target.bandwidth.value if flops and target.bandwidth else None
    here, absent = (None, "") if measure is False else _look_for(operators.as_device())
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
        measure=measure,
        hardware=here,
        absent=absent,
    )


def _look_for(device: Device | None) -> tuple[str | None, str]:
    """What the device calls itself, or None and why it is not here."""
    try:
        return (hardware(device), "") if device else (None, "torch's name of it is not known")
    except DeviceAbsent as error:
        return None, str(error)


def _digest(folder: Path, name: str) -> str:
    path = folder / f"{name}.yaml"
    if not path.is_file() or path.parent != folder:
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise InputError(f"no operator list named {name!r} in {folder}; there is: {known}")
    return sha256_file(path)
