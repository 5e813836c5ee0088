"""The figures of a target, each with its source. What no source gives is None; what is assumed says so."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from day0.artifacts.base import Frozen

Source = Annotated[str, Field(min_length=1)]
"""Where a figure is from: a data sheet, a log, a measurement and its conditions. One that begins with `assumed`
marks a figure that nobody published for this target."""

ASSUMED = "assumed"

Share = Annotated[float, Field(gt=0, le=1)]


class Architecture(Frozen):
    """What compilers call the device: `sm_90` (NVIDIA's compute capability 9.0), `gfx942` (AMD)."""

    name: Annotated[str, Field(pattern=r"^(sm_\d{2,3}|gfx[0-9a-f]{3,4})$")]
    source: Source


class Amount(Frozen):
    """A count of devices or bytes."""

    value: NonNegativeInt
    source: Source


class Rate(Frozen):
    """Bytes or FLOPs per second."""

    value: PositiveFloat
    source: Source


class Seconds(Frozen):
    """A time."""

    value: PositiveFloat
    source: Source


class Portion(Frozen):
    """What is reached of a peak, in (0, 1]."""

    value: Share
    source: Source


class Price(Frozen):
    """Of one device for one hour."""

    value: PositiveFloat
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")]
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


def _assumed(value: int, why: str) -> Amount:
    return Amount(value=value, source=f"{ASSUMED}: {why}")


class EngineMemory(Frozen):
    """What an engine takes on each device beside weights, KV cache and activations.

    The defaults are the one place where something is assumed of a target that nobody has measured: what vLLM 0.32.0
    takes on an H100, rounded up, and what it does on a device that it does not know.
    """

    per_device: Amount = _assumed(2 << 30, "1.79 GiB on an H100 (vllm-project/vllm#10511), rounded up")
    per_device_parallel: Amount = _assumed(4 << 30, "3.58 GiB on an H100 (vllm-project/vllm#10511), rounded up")
    """In the place of `per_device` where tensor or pipeline parallelism is used: communication buffers too."""
    per_node: Amount = _assumed(0, "the engine's other processes live in the host's memory")
    """Once on each node, on shared memory: the processes that serve and schedule."""
    unused_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the device's memory that the engine leaves alone (vLLM: 1 - gpu_memory_utilization)."""
    unused_share_source: Source = f"{ASSUMED}: gpu_memory_utilization 0.9, vLLM's default for most of its life"
    kv_block_tokens: PositiveInt = 16
    """The KV cache is handed out in blocks of so many tokens."""
    kv_block_source: Source = f"{ASSUMED}: vLLM 0.32.0, config/cache.py, DEFAULT_BLOCK_SIZE"
    batched_tokens: PositiveInt = 2048
    """Most tokens of one forward pass (vLLM's max_num_batched_tokens); activations are sized for it."""
    prompt_logits: NonNegativeInt = 512
    """Rows of logits over the vocabulary that are made at once where a request asks for its prompt's
    log-probabilities, as smoke does: more than one of its prompts has."""
    defaults_source: Source = (
        f"{ASSUMED}: vLLM 0.32.0, engine/arg_utils.py get_batch_defaults for the API server on an unknown device"
    )
    """Where `batched_tokens` is from."""

    def assumed(self) -> tuple[str, ...]:
        """The fields that nobody measured or documented for this target."""
        sources = {
            "per_device": self.per_device.source,
            "per_device_parallel": self.per_device_parallel.source,
            "per_node": self.per_node.source,
            "unused_share": self.unused_share_source,
            "kv_block_tokens": self.kv_block_source,
            "batched_tokens": self.defaults_source,
        }
        return tuple(name for name, source in sources.items() if source.startswith(ASSUMED))


class DTypes(Frozen):
    """What the target computes with and can hold, in the names of torch."""

    weights: Annotated[tuple[str, ...], Field(min_length=1)]
    """Dtypes of unquantised weights; a checkpoint in another is converted to one of them, or refused."""
    kv_cache: Annotated[tuple[str, ...], Field(min_length=1)]
    source: Source


FORMATS = ("fp8", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "int8", "int4")
"""Quantised weights. `fp8`: a scale per tensor or channel; `fp8_block`: per 128x128 block; `mxfp8`, `mxfp4`: an E8M0
scale per 32 (OCP microscaling); `nvfp4`: an E4M3 scale per 16 and one for the tensor; `int8`: weights and
activations (W8A8); `int4`: weights only, in groups (GPTQ, AWQ, compressed-tensors W4A16)."""

FLOPS = ("bfloat16", "float16", "float32", "tf32", "fp8", "mxfp4", "nvfp4", "int8", "int4")
"""What matrix work is counted by. All 8-bit floats are as fast, so `fp8` stands for `fp8_block` and `mxfp8` too."""


class Format(Frozen):
    """What becomes of weights that are stored in a quantised format.

    `native`: the multiplication is done in it. `weight_only`: they stay in it in memory, and are widened inside the
    kernel. `none`: they must be converted to one of the plain dtypes before they are loaded, and take its room.
    """

    compute: Literal["native", "weight_only", "none"]
    source: Source


class Fp8Format(Frozen):
    """The 8-bit float that the device computes with, as torch names it.

    `float8_e4m3fn` is OCP's, up to 448, what checkpoints hold; `float8_e4m3fnuz` and Gaudi 2's reach 240: there an
    engine must halve the values that are larger, and double the scales.
    """

    name: Literal["float8_e4m3fn", "float8_e4m3fnuz", "gaudi2"]
    source: Source

    @property
    def largest(self) -> float:
        return 448.0 if self.name == "float8_e4m3fn" else 240.0


class Efficiency(Frozen):
    """What engines reach of the peaks, and what a step costs beside them. Measured, or absent."""

    compute: Portion | None = None
    """Of the peak FLOPs, by a large matrix multiplication."""
    memory: Portion | None = None
    """Of the peak memory bandwidth, by a multiplication of few rows that reads its weights once."""
    attention: Portion | None = None
    """Of the peak memory bandwidth, by the attention of decode."""
    attention_compute: Portion | None = None
    """Of the peak FLOPs, by the attention of prefill."""
    experts: Portion | None = None
    """Of the peak FLOPs, by the grouped multiplication of routed experts in 16 bits."""
    quantised_experts: Portion | None = None
    """The same of experts in a format that the device computes in, of that format's peak."""
    widened: Portion | None = None
    """Of the peak memory bandwidth, by experts whose weights are widened as they are read."""
    link: Portion | None = None
    """Of the links' bandwidth, by a collective of a large message."""
    kernel_seconds: Seconds | None = None
    """The least time of one kernel within a captured graph."""
    quantised_seconds: Seconds | None = None
    """The least time of one multiplication whose inputs are quantised before it."""
    collective_seconds: Seconds | None = None
    """The least time of one all-reduce within a node, whatever its size."""
