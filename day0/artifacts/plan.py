"""ParallelPlan: how a model is laid out over a target's devices."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class DeviceMemory(Frozen):
    """Bytes on the worst device."""

    weights: int
    kv_cache: int
    activations: int
    overhead: int
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
    chosen: Layout | None
    alternatives: tuple[Layout, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    max_context: int
    """The longest context that fits at the asked concurrency, at most the model's own."""
    context: int
    concurrency: int
    weight_dtype: str
    """What the weights are served as: `bfloat16`, …"""
    kv_dtype: str
    engine_args: dict[str, Any]
    """Neutral engine arguments: `tensor_parallel_size`, `pipeline_parallel_size`, `max_model_len`,
    `max_num_seqs`, `dtype`, `kv_cache_dtype`, `kv_cache_bytes` (per device)."""
