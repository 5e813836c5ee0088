"""ParallelPlan: how a model is laid out over a target's devices."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from day0.artifacts.base import Artifact, Frozen


class DeviceMemory(Frozen):
    """Bytes on the worst device: the one, of all pipeline stages and ranks, that holds most."""

    weights: int
    """Of the checkpoint's tensors as they are stored or converted, with their scales, and what ranks hold the same:
    the tensor data that `reshard --layout hf` writes for the rank."""
    kv_cache: int
    """Cache and state for the plan's context and concurrency, in whole blocks."""
    activations: int
    """At the peak of a pass, with memory used again once it is free."""
    overhead: int
    """The engine's own, the share of the device that it leaves alone, and what it pads."""
    total: int
    capacity: int
    fragmentation: int = 0
    """What of `kv_cache` is more than the sequences use: partly filled pages, windows kept longer, padding."""
    activations_without_reuse: int | None = None
    """If every activation of the pass had memory of its own."""
    stage: int = 0
    """The pipeline stage that the device is of."""


class Placement(Frozen):
    """Where something lies that is no layer like the others."""

    what: str
    """`embedding`, `head`, `dense layers`, `multi-token prediction`, `vision`, `audio`, `projector`."""
    stage: int
    ranks: str
    """Of the stage: `all`, or how many hold a copy."""
    how: str
    """`divided by rows`, `whole on each`, …"""
    bytes: int
    """On the rank that has most."""


class Layout(Frozen):
    """Tensor, pipeline, expert, data and decode-context parallel sizes, and what one device holds."""

    tp: int
    pp: int
    ep: int
    dp: int
    devices: int
    per_device: DeviceMemory
    stages: tuple[tuple[int, int], ...]
    """Per pipeline stage the layers that it holds, as (first, one past the last)."""
    dcp: int = 1
    """Ranks of a tensor parallel group that share out the tokens of a cache."""
    seconds_per_token: float | None = None
    """Predicted time of one decode step at the plan's context and concurrency; None where the target's memory
    bandwidth is not known."""
    prefill_seconds: float | None = None
    """Predicted time until a prompt as long as the context is computed, alone in a replica; None as above."""
    tokens_per_second: float | None = None
    """Of all replicas together, in decode, with as many micro-batches as pipeline stages."""
    terms: dict[str, float] = Field(default_factory=dict)
    """What the step's time consists of, seconds by term."""


class Rejection(Frozen):
    """A layout that a named constraint forbids: `dimension` of `size` is not divisible by `divisor`, or memory.

    Of layouts that the same constraint forbids only one is listed.
    """

    tp: int
    pp: int
    ep: int
    dp: int
    reason: str
    dimension: str | None = None
    size: int | None = None
    divisor: int | None = None
    dcp: int = 1
    constraint: str | None = None
    """Its name: `heads and rows`, `shared heads`, `vocabulary`, `quantisation block`, `experts`, `pipeline`,
    `context parallel`, `sizes` (that do not go together), `nodes`, `devices`, `memory`."""


class Offload(Frozen):
    """What it would cost to keep a part of the weights in the host's memory. Advice: nothing chooses it."""

    tp: int
    pp: int
    ep: int
    dp: int
    bytes_per_device: int
    """That a device lacks, and reads from its host for every step."""
    seconds_per_token: float | None
    """Those bytes over the host link; None where its bandwidth is not known."""
    reason: str


class WorkerPool(Frozen):
    """Workers of one layout."""

    tp: int
    pp: int
    ep: int
    dp: int
    dcp: int
    workers: int
    sequences: int
    """Of one attention replica at a time."""
    requests_per_second: float
    """That the pool can take."""


class Disaggregation(Frozen):
    """Prefill and decode in two pools on the devices given, the slower one limiting both. Set against the chosen
    layout, and not chosen itself."""

    prefill: WorkerPool
    decode: WorkerPool
    devices: int
    first_token_seconds: float
    """With the transfer of the cache."""
    transfer_seconds: float
    seconds_per_token: float
    tokens_per_second: float


class ParallelPlan(Artifact):
    """The chosen layout, what else was possible, what was rejected and why, and the engine's arguments."""

    kind: ClassVar[str] = "plan"

    target: str
    feasible: bool
    minimum_devices: int | None
    """The fewest devices on which the asked context fits at the asked concurrency; without an asked context, on which
    any does. None: no number of devices is enough."""
    minimum_layout: dict[str, int] = Field(default_factory=dict)
    """The sizes with which it does on so many: `tp`, `pp`, `ep`, `dp`, `dcp`."""
    chosen: Layout | None
    alternatives: tuple[Layout, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    max_context: int
    """The longest context that fits at the asked concurrency on the given devices, at most the model's own; 0: none."""
    context: int
    """What the plan is made for: the asked context, or else `max_context`."""
    concurrency: int
    objective: str = "latency"
    """What the layouts are ranked by: `latency`, `throughput` or `cost`."""
    weight_dtype: str
    """What the weights are served as: `bfloat16`, `fp8_block`, `mxfp4`, …; of a checkpoint that mixes them, what most
    parameters are."""
    convert_to: str | None = None
    """What resharding must convert the weights to; None: they are served as they are stored."""
    weight_reason: str = ""
    """Why they are converted, or that they are not."""
    kv_dtype: str
    index_dtype: str | None = None
    """Of an indexer's keys, where it is another than the cache's."""
    mtp: bool = False
    """Whether the cache has room for multi-token prediction's layers."""
    placement: tuple[Placement, ...] = ()
    """What the chosen layout does with the concentrated layers."""
    notes: tuple[str, ...] = ()
    """What the chosen layout does otherwise than a plain division, and what is approximate."""
    offload: Offload | None = None
    """Where nothing fits: what streaming from the host would cost."""
    disaggregation: Disaggregation | None = None
    """Where the length of an answer is given and the speeds are known."""
    unchecked: tuple[str, ...] = ()
    """What could not be checked or predicted, because no source gives the target's figure."""
    engine_args: dict[str, Any]
    """Neutral engine arguments: `tensor_parallel_size`, `pipeline_parallel_size`, `data_parallel_size` (of several
    replicas), `expert_parallel_size` and `decode_context_parallel_size` (more than 1), `max_model_len`, `max_num_seqs`
    (of one replica), `max_num_batched_tokens`, `dtype`, `kv_cache_dtype` (`auto` where it is that of the weights),
    `kv_cache_bytes` (per device). Empty when the plan is not feasible."""
    engines: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The same as arguments of `vllm` and `sglang`, for one instance. An engine that cannot run the layout is left
    out, and a note says why."""

    @property
    def summary(self) -> str:
        if self.chosen is None:
            return super().summary
        device, gib = self.chosen.per_device, 1 << 30
        ep = f" x EP {self.chosen.ep}" if self.chosen.ep > 1 else ""
        return (
            f"TP {self.chosen.tp} x PP {self.chosen.pp}{ep} x DP {self.chosen.dp} on {self.chosen.devices} device(s) "
            f"of {self.target}; {device.total / gib:.1f} of {device.capacity / gib:.1f} GiB each; "
            f"context {self.context:,}"
        )
