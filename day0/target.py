"""Targets: what an accelerator offers, read from configs/targets/NAME.yaml. Every figure carries its source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from day0.artifacts.base import Frozen
from day0.config import named_config
from day0.errors import InputError
from day0.home import configs
from day0.target_figures import (
    FLOPS,
    FORMATS,
    Amount,
    Architecture,
    DTypes,
    Efficiency,
    EngineMemory,
    Format,
    Fp8Format,
    Memory,
    Price,
    Rate,
    Seconds,
)

__all__ = ["GIB", "EngineMemory", "Rate", "Target", "load_target", "machine_memory"]

GIB = 1 << 30

#: Figures whose absence `Target.unknown` reports, beside those of tables.
_OPTIONAL = (
    "bandwidth",
    "link_bandwidth",
    "link_latency",
    "scale_out",
    "scale_out_latency",
    "host_link",
    "hourly_price",
)


class Target(Frozen):
    """An accelerator as day0 plans for it and runs on it. A device is what the engine counts as one: a die of an
    Ascend 910C, one of the two chips of an Iluvatar BI-V150.
    """

    description: str
    devices_per_node: Amount
    memory: Memory
    bandwidth: Rate | None = None
    """Of one device's memory, bytes per second."""
    flops: dict[str, Rate] = Field(default_factory=dict)
    """Matrix work of one device, FLOPs (or integer operations) per second, without sparsity, by the names of `FLOPS`:
    the dtype of both factors."""
    link_bandwidth: Rate | None = None
    """What one device sends to the others of its scale-up domain, all its links together, bytes per second in one
    direction."""
    pair_bandwidth: Rate | None = None
    """The same between two devices, where they are joined without a switch and a pair has only some of the links.
    None: a pair has all."""
    link_latency: Seconds | None = None
    scale_up_devices: Amount | None = None
    """Devices that the scale-up links join. None: those of a node."""
    scale_out: Rate | None = None
    """What one device sends to devices outside its domain, bytes per second in one direction."""
    scale_out_latency: Seconds | None = None
    host_link: Rate | None = None
    """Between a device and its host's memory, bytes per second in one direction; what offload and loading cost."""
    dtypes: DTypes
    formats: dict[str, Format] = Field(default_factory=dict)
    """What becomes of quantised weights, by the names of `FORMATS`; a format that is not listed is not known."""
    architecture: Architecture | None = None
    """What kernels are compiled for ahead of time. None where the vendor's own compiler, on the device, makes them."""
    fp8_format: Fp8Format | None = None
    """None where the device does not compute with 8-bit floats, or where it is not known."""
    efficiency: Efficiency = Efficiency()
    hourly_price: Price | None = None
    engine_memory: EngineMemory = EngineMemory()
    engines: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of files in configs/engines/; the first is the default."""
    image: str
    """Folder under images/ that the engine's environment is made from."""
    runtimes: Annotated[tuple[str, ...], Field(min_length=1)]
    """How the engine may be started; the first is the default."""
    operators: str
    """Name of the operator list that coverage is judged by."""
    work_pool: str
    """The Prefect work pool whose workers sit beside this accelerator."""

    @field_validator("flops", "formats")
    @classmethod
    def _names(cls, table: dict[str, object], info: ValidationInfo) -> dict[str, object]:
        allowed = FORMATS if info.field_name == "formats" else FLOPS
        wrong = next((name for name in table if name not in allowed), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is none of {', '.join(allowed)}")
        return table

    def node_memory(self) -> int:
        """Bytes of one device, or of all of a node's where they share one memory, after the reserve.

        Raises:
            InputError: the reserve leaves nothing.
        """
        total = machine_memory() // GIB * GIB if self.memory.bytes == "auto" else self.memory.bytes
        usable = total - self.memory.reserve
        if usable <= 0:
            raise InputError(
                f"this machine has {total / GIB:.1f} GiB of memory and the target's memory.reserve keeps "
                f"{self.memory.reserve / GIB:.1f} GiB: lower the reserve in the target's config or give --device-memory"
            )
        return usable

    @property
    def scale_up(self) -> int:
        """Devices of one scale-up domain, at least those of a node."""
        return max(self.devices_per_node.value, self.scale_up_devices.value if self.scale_up_devices else 0)

    def group_bandwidth(self, devices: int) -> float | None:
        """Bytes per second, in one direction, that each of `devices` devices can send to the others of its group.

        Within a scale-up domain that is all the links, or those to the group's members where there is no switch;
        beyond it the link between nodes, or the slower of the two. None: a link that is needed is not known.
        """
        within = self.link_bandwidth.value if self.link_bandwidth else None
        if devices <= self.scale_up:
            if within is not None and self.pair_bandwidth is not None:
                return min(within, max(1, devices - 1) * self.pair_bandwidth.value)
            return within
        if within is None or self.scale_out is None:
            return None
        return min(within, self.scale_out.value)

    def holds(self, weights: str) -> bool | None:
        """Whether weights of a quantised format stay in it in the device's memory; None: not known."""
        known = self.formats.get(weights)
        return None if known is None else known.compute != "none"

    def computes(self, weights: str) -> bool | None:
        """Whether the device multiplies in a quantised format; None: not known."""
        known = self.formats.get(weights)
        return None if known is None else known.compute == "native"

    def unknown(self) -> tuple[str, ...]:
        """The figures that no source gives, and those that are assumed, by their names in the file.

        FLOPs are missed for the dtypes of weights and for the formats that the device computes in.
        """
        computed = (*self.dtypes.weights, *(name for name in FORMATS if self.computes(name)))
        fp8 = any(self.computes(name) for name in ("fp8", "fp8_block", "mxfp8"))
        return (
            *(name for name in _OPTIONAL if getattr(self, name) is None),
            *(f"flops.{name}" for name in computed if _rate_name(name) not in self.flops),
            *(f"formats.{name}" for name in FORMATS if name not in self.formats),
            *(("fp8_format",) if fp8 and self.fp8_format is None else ()),
            *(f"efficiency.{name}" for name in Efficiency.model_fields if getattr(self.efficiency, name) is None),
            *self.assumed(),
        )

    def assumed(self) -> tuple[str, ...]:
        """The part of `unknown` that has a value all the same, which day0 assumes (see EngineMemory)."""
        return tuple(f"engine_memory.{name}" for name in self.engine_memory.assumed())


def _rate_name(computed: str) -> str:
    """By which name of `Target.flops` work in a dtype or format is counted: all 8-bit floats are as fast."""
    return "fp8" if computed in ("fp8_block", "mxfp8") else computed


def load_target(name: str) -> Target:
    """The target `configs/targets/name.yaml`.

    Raises:
        InputError: there is none by that name, or its file is malformed.
    """
    return named_config(configs() / "targets", name, Target)


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use: the machine's, or less where a control group limits it.

    The sum of memory rather than what is free now, so that a plan made twice is the same. `root` is where proc and
    sys lie.
    """
    meminfo = root / "proc/meminfo"
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
        limits = [int(line.split()[1]) * 1024]
    except (OSError, StopIteration, ValueError, IndexError) as error:
        raise InputError(f"the memory of this machine cannot be read from {meminfo}: give --device-memory") from error
    for limit in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int((root / limit).read_text()))
        except (OSError, ValueError):
            continue  # no such control group, or "max": no limit
    return min(limits)
