"""Targets: what an accelerator offers, read from configs/targets/NAME.yaml. Every figure carries its source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from day0.artifacts.base import Frozen
from day0.config import named_config
from day0.errors import InputError
from day0.home import configs

GIB = 1 << 30

Source = Annotated[str, Field(min_length=1)]
"""Where a figure is from: a data sheet, a log, a measurement and its conditions."""


class Amount(Frozen):
    """A count of devices or bytes."""

    value: NonNegativeInt
    source: Source


class Rate(Frozen):
    """Bytes or FLOPs per second."""

    value: PositiveFloat
    source: Source


class Memory(Frozen):
    """Memory of one device, bytes."""

    bytes: PositiveInt | Literal["auto"]
    """`auto`: measured on this machine, the memory that its operating system and control group allow."""
    reserve: NonNegativeInt = 0
    """With `auto`: bytes left to the rest of the machine."""
    shared: bool = False
    """All devices of a node share one memory (the ranks of an engine on a CPU): each gets its part."""
    source: Source


class EngineMemory(Frozen):
    """What an engine takes on each device beside weights, KV cache and activations."""

    per_device: Amount
    per_device_parallel: Amount
    """In the place of `per_device` where tensor or pipeline parallelism is used: communication buffers too."""
    per_node: Amount
    """Once on each node, on shared memory: the processes that serve and schedule."""
    unused_share: Annotated[NonNegativeFloat, Field(lt=1)]
    """Share of the device's memory that the engine leaves alone (vLLM: 1 - gpu_memory_utilization)."""
    unused_share_source: Source
    kv_block_tokens: PositiveInt
    """The KV cache is handed out in blocks of so many tokens."""
    batched_tokens: PositiveInt
    """Most tokens of one forward pass (vLLM's max_num_batched_tokens); activations are sized for it."""
    prompt_logits: NonNegativeInt
    """Rows of logits over the vocabulary that are made at once where a request asks for its prompt's
    log-probabilities, as smoke does."""
    defaults_source: Source


class DTypes(Frozen):
    """What the target computes with and can hold, in the names of torch."""

    weights: tuple[str, ...]
    kv_cache: tuple[str, ...]
    source: Source


class Target(Frozen):
    """An accelerator as day0 plans for it and runs on it."""

    description: str
    devices_per_node: Amount
    memory: Memory
    bandwidth: Rate | None = None
    """Of one device's memory, bytes per second. None: not known before it is measured on the machine."""
    flops: dict[str, Rate] = Field(default_factory=dict)
    """Dense matrix work of one device by dtype, FLOPs per second."""
    link_bandwidth: Rate | None = None
    """Between two devices of a node, bytes per second in one direction."""
    dtypes: DTypes
    engine_memory: EngineMemory
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
