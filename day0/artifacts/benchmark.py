"""BenchmarkReport: how fast the service is, measured by our own client, with the conditions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from day0.artifacts.base import Frozen
from day0.artifacts.service import OfService

PrefixCache = Literal["cold", "warm"]


class Percentiles(Frozen):
    """Of a time in seconds, over `count` samples; interpolated as `formulas["percentile"]` says."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Cell(Frozen):
    """One load: a concurrency and a state of the prefix cache. Only complete requests enter the numbers."""

    concurrency: int
    prefix_cache: PrefixCache
    """`cold`: every prompt is new; `warm`: prompts share a prefix that was sent before."""
    requests: int
    completed: int
    errors: tuple[str, ...]
    """One sentence for each request that failed or gave another number of tokens than asked."""
    input_tokens: int
    """Sum over the complete requests, as the engine counts them."""
    output_tokens: int
    seconds: float
    """From the first request's start to the last token."""
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None
    output_tokens_per_second: float | None
    prefix_cache_hit_rate: float | None
    """Tokens served from the cache over tokens asked for, from the engine's own counters."""
    finish_reasons: dict[str, int] = Field(default_factory=dict)


class Roofline(Frozen):
    """Decode at concurrency 1 against the memory bandwidth measured on this machine."""

    bytes_per_step: int
    weight_bytes: int
    kv_bytes: int
    bandwidth: float
    """Bytes a second."""
    least_seconds_per_token: float
    measured_seconds_per_token: float
    """The median TPOT at concurrency 1 with a cold prefix cache."""
    share: float
    """least / measured: 1 is as fast as the memory allows."""


class BenchmarkReport(OfService):
    """`files` holds `requests.jsonl`, every request with the arrival time of each token, where a stage made it."""

    kind: ClassVar[str] = "benchmark"

    formulas: dict[str, str]
    """How each metric is computed, in words and symbols."""
    conditions: dict[str, Any]
    """Input and output lengths, warm-up, seed, client, engine version, date."""
    machine: dict[str, Any]
    cells: tuple[Cell, ...]
    roofline: Roofline | None

    @property
    def summary(self) -> str:
        """TTFT and TPOT at the lowest concurrency, throughput at the highest, both with a cold prefix cache."""
        cold = sorted((cell for cell in self.cells if cell.prefix_cache == "cold"), key=lambda cell: cell.concurrency)
        if not cold or cold[0].ttft is None or cold[0].tpot is None or cold[-1].output_tokens_per_second is None:
            return super().summary
        text = (
            f"TTFT {cold[0].ttft.p50 * 1e3:.0f} ms, TPOT {cold[0].tpot.p50 * 1e3:.1f} ms at concurrency "
            f"{cold[0].concurrency}; {cold[-1].output_tokens_per_second:.1f} tokens/s at {cold[-1].concurrency}"
        )
        text += f"; {self.roofline.share:.0%} of the decode roofline" if self.roofline else ""
        return self.with_kernels(text)
