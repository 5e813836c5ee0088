"""The metrics of serving, computed from each token's time of arrival. Plain arithmetic, no dependencies.

The definitions are those of `vllm bench serve`, MLPerf's TPOT and inference-perf; other tools use the same names for
other quantities (guidellm's TPOT includes the first token, its ITL is a mean per request), so each formula
is part of the report.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from day0.artifacts.benchmark import Percentiles

FORMULAS = {
    "ttft": "time to first token: arrival of the first chunk that carries a token (reasoning included, "
    "an empty or role-only chunk not) - start of the request",
    "tpot": "time per output token, one value per request: (e2e - ttft) / (output tokens - 1)",
    "itl": "inter-token latency: gaps between successive tokens' arrivals, pooled over all requests; "
    "tokens in one chunk arrive together, so their gaps are 0",
    "e2e": "end-to-end latency: arrival of the last token - start of the request",
    "output_tokens_per_second": "output tokens of the complete requests / "
    "(last token's arrival - first request's start)",
    "percentile": "linear interpolation between the two nearest order statistics at rank q·(n - 1) "
    "(Hyndman and Fan's type 7, numpy's default)",
    "prefix_cache_hit_rate": "increase of the engine's vllm:prefix_cache_hits over that of vllm:prefix_cache_queries, "
    "in tokens, during the cell",
    "roofline_share": "(bytes of weights and KV cache that a decode step must read / measured read bandwidth) "
    "/ median TPOT at concurrency 1, cold",
}


def ttft(start: float, arrivals: Sequence[float]) -> float:
    """Seconds from a request's start to its first token. `arrivals`: one time per token, ascending, not empty."""
    return arrivals[0] - start


def e2e(start: float, arrivals: Sequence[float]) -> float:
    """Seconds from a request's start to its last token."""
    return arrivals[-1] - start


def tpot(start: float, arrivals: Sequence[float]) -> float | None:
    """Seconds per output token after the first; None for a request of one token."""
    if len(arrivals) < 2:
        return None
    return (e2e(start, arrivals) - ttft(start, arrivals)) / (len(arrivals) - 1)


def gaps(arrivals: Sequence[float]) -> list[float]:
    """Seconds between successive tokens; their sum is the last arrival less the first."""
    return [later - earlier for earlier, later in itertools.pairwise(arrivals)]


def percentile(ordered: Sequence[float], q: float) -> float:
    """The `q` quantile (0 to 1) of ascending values, interpolated linearly (Hyndman and Fan, type 7)."""
    rank = q * (len(ordered) - 1)
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summary(values: Sequence[float]) -> Percentiles | None:
    """Percentiles of a sample; None if it is empty, for there is nothing to tell."""
    if not values:
        return None
    ordered = sorted(values)
    return Percentiles(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )
