"""BenchmarkReport: how fast the service is, measured by our own client, with the conditions."""

from __future__ import annotations

from typing import Any, ClassVar

from day0.artifacts.base import Artifact, Frozen


class Percentiles(Frozen):
    """Of a time in seconds, over `count` samples."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Cell(Frozen):
    """One load: a concurrency and a state of the prefix cache."""

    concurrency: int
    prefix_cache: str
    """`cold`: every prompt is new; `warm`: prompts share a prefix that was sent before."""
    requests: int
    completed: int
    errors: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    seconds: float
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None
    output_tokens_per_second: float | None
    prefix_cache_hit_rate: float | None
    """Tokens served from the cache over tokens asked for, from the engine's own counters."""


class Roofline(Frozen):
    """Decode at concurrency 1 against the memory bandwidth measured on this machine."""

    bytes_per_step: int
    bandwidth: float
    least_seconds_per_token: float
    measured_seconds_per_token: float
    share: float


class BenchmarkReport(Artifact):
    kind: ClassVar[str] = "benchmark"

    formulas: dict[str, str]
    """How each metric is computed, in words and symbols."""
    conditions: dict[str, Any]
    """Input and output lengths, warm-up, seed, client, engine version, date."""
    machine: dict[str, Any]
    cells: tuple[Cell, ...]
    roofline: Roofline | None
