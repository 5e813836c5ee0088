"""ParallelPlan: how a model is laid out over a target's devices."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class DeviceMemory(Frozen):
    """Bytes on the worst device: the one, of all pipeline stages and ranks, that holds most."""

    weights: int
    kv_cache: int
    """For the plan's context and concurrency, in whole blocks."""
    activations: int
    overhead: int
    """The engine's own, and the share of the device that it leaves alone."""
    total: int
    capacity: int


class Layout(Frozen):
    """Tensor, pipeline, expert and data parallel sizes, and what one device holds."""

    tp: int
    pp: int
    ep: int
    dp: int
    devices: int
    per_device: DeviceMemory
    stages: tuple[tuple[int, int], ...]
    """Per pipeline stage the layers that it holds, as (first, one past the last)."""
    seconds_per_token: float | None = None
    """Predicted time of one decode step at the plan's context and concurrency; None where the target's memory
    bandwidth is not known."""


class Rejection(Frozen):
    """A layout that a named constraint forbids: `dimension` of `size` is not divisible by `divisor`, or memory."""

    tp: int
    pp: int
    ep: int
    dp: int
    reason: str
    dimension: str | None = None
    size: int | None = None
    divisor: int | None = None


class ParallelPlan(Artifact):
    """The chosen layout, what else was possible, what was rejected and why, and the engine's arguments."""

    kind: ClassVar[str] = "plan"

    target: str
    feasible: bool
    minimum_devices: int | None
    """The fewest devices on which the asked context fits at the asked concurrency; without an asked context, on which
    any does. None: no number of devices is enough."""
    chosen: Layout | None
    alternatives: tuple[Layout, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    max_context: int
    """The longest context that fits at the asked concurrency on the given devices, at most the model's own; 0: none."""
    context: int
    """What the plan is made for: the asked context, or else `max_context`."""
    concurrency: int
    weight_dtype: str
    """What the weights are served as: `bfloat16`, …"""
    kv_dtype: str
    engine_args: dict[str, Any]
    """Neutral engine arguments: `tensor_parallel_size`, `pipeline_parallel_size`, `data_parallel_size` (of several
    replicas), `max_model_len`, `max_num_seqs` (of one replica), `max_num_batched_tokens`, `dtype`, `kv_cache_dtype`
    (`auto` where it is that of the weights), `kv_cache_bytes` (per device). Empty when the plan is not feasible."""

    @property
    def summary(self) -> str:
        if self.chosen is None:
            return super().summary
        device, gib = self.chosen.per_device, 1 << 30
        return (
            f"TP {self.chosen.tp} x PP {self.chosen.pp} x DP {self.chosen.dp} on {self.chosen.devices} device(s) of "
            f"{self.target}; {device.total / gib:.1f} of {device.capacity / gib:.1f} GiB each; context {self.context:,}"
        )
