"""The engine's own counters of its prefix cache, read from its Prometheus endpoint."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp

_QUERIES = "vllm:prefix_cache_queries_total"
_HITS = "vllm:prefix_cache_hits_total"


@dataclass(frozen=True)
class PrefixCounters:
    """Tokens that were looked up in the prefix cache, and tokens that were found there, since the engine's start."""

    queries: float
    hits: float

    def since(self, before: PrefixCounters) -> PrefixCounters:
        return PrefixCounters(self.queries - before.queries, self.hits - before.hits)


def parse(text: str) -> PrefixCounters | None:
    """The counters, summed over engines, from Prometheus text; None if they are not there."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name in (_QUERIES, _HITS):
            try:
                sums[name] = sums.get(name, 0.0) + float(line.rsplit(" ", 1)[1])
            except (IndexError, ValueError):
                return None
    if len(sums) < 2:
        return None
    return PrefixCounters(queries=sums[_QUERIES], hits=sums[_HITS])


async def read(session: aiohttp.ClientSession, url: str) -> PrefixCounters | None:
    """The counters of the engine at `url` now; None if it does not tell them."""
    try:
        async with asyncio.timeout(10), session.get(f"{url}/metrics") as response:
            return parse(await response.text()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None
