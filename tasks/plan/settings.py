"""What a plan is asked for. The target's content is part of it, so that an edited target makes a new plan."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from day0.architecture.family import families_digest
from day0.artifacts.base import Settings
from day0.target import Target, load_target

Size = Annotated[int, Field(ge=1, le=65_536)]


class PlanSettings(Settings):
    """Give `target` by name; `spec` and `memory` are then read from its config and from this machine."""

    target: str
    spec: Target
    memory: int = Field(ge=1)
    """Bytes of the target's device; where a node's devices share one memory, of all of them."""
    devices: Size | None = None
    """None: one node, or as many as the given sizes need."""
    device_memory: int | None = Field(default=None, ge=1, le=1 << 50)
    """Bytes of each device, in the place of the target's."""
    context: int | None = Field(default=None, ge=1, le=1 << 40)
    """Tokens of a sequence; None: as many as fit, up to the model's own."""
    concurrency: int = Field(default=4, ge=1, le=1_000_000)
    """Sequences at a time, over all replicas."""
    output: int | None = Field(default=None, ge=1, le=1 << 40)
    """Of them those of an answer, the rest is the prompt: the throughput then counts the time that prompts take. None:
    decode alone."""
    tpot: float | None = Field(default=None, gt=0)
    """Seconds: layouts whose predicted time of a token is longer are rejected."""
    kv_dtype: str | None = None
    """None: what the checkpoint's quantisation says, or that of the weights, as engines do."""
    index_dtype: str | None = None
    """Of an indexer's keys; None: that of the cache."""
    weight_dtype: str | None = None
    """None: as the checkpoint has them, or what the target can hold where it cannot hold that."""
    mtp: bool = False
    """Whether the engine uses multi-token prediction, whose layers then have a cache too."""
    tp: Size | None = None
    pp: Size | None = None
    ep: Size | None = None
    dp: Size | None = None
    dcp: Size | None = None
    objective: Literal["latency", "throughput", "cost"] = "latency"
    """What layouts are ranked by, at the asked concurrency: the least time of a token; the most tokens a second of all
    replicas together; the same a device."""
    families: str = Field(default_factory=families_digest)
    """Digest of the family files that the model is read by."""

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("target"), str):
            spec = values.get("spec") or load_target(values["target"])
            if isinstance(spec, Target):
                given = values.get("device_memory")
                memory = values.get("memory") or given or spec.node_memory()
                return {**values, "spec": spec, "memory": memory}
        return values

    def capacity(self, devices: int) -> int:
        """Bytes of each of `devices` devices."""
        if self.device_memory is not None:
            return self.device_memory
        return self.memory // devices if self.spec.memory.shared else self.memory

    def on_node(self, devices: int) -> int:
        """How many of `devices` devices stand on one node."""
        return devices if self.spec.memory.shared else min(devices, self.spec.devices_per_node.value)
