"""Closed-loop load: so many requests in flight at any time, and a watch over the engine that serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from day0.artifacts.benchmark import PrefixCache
from day0.endpoint import Endpoint, EngineDied
from day0.progress import report
from tasks.benchmark import counters
from tasks.benchmark.client import Result, complete
from tasks.benchmark.counters import PrefixCounters
from tasks.benchmark.prompts import Prompts
from tasks.benchmark.settings import BenchmarkSettings

T = TypeVar("T")

#: How often the engine's life is asked after, and how long its death may take to be explained, in seconds
#: (shorter once its port is closed: whoever started it knows by then).
_WATCH_INTERVAL = 0.5
_EXPLAIN_WITHIN = 10.0
_EXPLAIN_GONE = 2.0
_HEALTH_TIMEOUT = 5.0


@dataclass(frozen=True)
class CellRun:
    """What one cell's requests did, and how the prefix cache's counters moved meanwhile."""

    concurrency: int
    prefix_cache: PrefixCache
    requests: int
    results: tuple[Result, ...]
    """In order of start; fewer than `requests` if the cell was given up."""
    cache: PrefixCounters | None


class Load:
    """Sends requests to one endpoint."""

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: Endpoint, prompts: Prompts, settings: BenchmarkSettings
    ) -> None:
        self._session = session
        self._endpoint = endpoint
        self._prompts = prompts
        self._settings = settings

    async def warm_up(self) -> list[Result]:
        """Requests that are not counted: the first ones after a start pay for compilation and allocation."""
        wanted = self._settings.warmup_requests
        prompts = [self._prompts.fresh(self._settings.input_tokens) for _ in range(wanted)]
        return await self._closed_loop("warm-up", prompts, 1)

    async def cell(self, concurrency: int, prefix_cache: PrefixCache) -> CellRun:
        """Run one cell. A warm cell's prefix is sent once before, and that request is not counted.

        Raises:
            EngineDied: the engine ended meanwhile.
        """
        settings = self._settings
        name = f"concurrency {concurrency}, {prefix_cache} prefix cache"
        prefix: tuple[int, ...] = ()
        if prefix_cache == "warm":
            prefix = self._prompts.fresh(settings.shared_prefix_tokens)
            await self._closed_loop(f"{name}: prefix", [self._prompts.fresh(settings.input_tokens, prefix)], 1)
        count = settings.requests_per_stream * concurrency
        prompts = [self._prompts.fresh(settings.input_tokens, prefix) for _ in range(count)]
        before = await counters.read(self._session, self._endpoint.url)
        results = await self._closed_loop(name, prompts, concurrency)
        after = await counters.read(self._session, self._endpoint.url)
        moved = after.since(before) if before and after else None
        return CellRun(concurrency, prefix_cache, count, tuple(results), moved)

    async def _closed_loop(self, name: str, prompts: Sequence[tuple[int, ...]], concurrency: int) -> list[Result]:
        """Send all prompts, `concurrency` at a time; given up once one is lost to time, for the rest would be too."""
        waiting = list(reversed(prompts))
        results: list[Result] = []
        given_up = False

        async def stream() -> None:
            nonlocal given_up
            while waiting and not given_up:
                result = await complete(
                    self._session,
                    self._endpoint.url,
                    self._endpoint.model,
                    waiting.pop(),
                    self._settings.output_tokens,
                    self._settings.request_timeout,
                )
                results.append(result)
                given_up = given_up or result.timed_out
                report(name, len(results), len(prompts), "requests")
                if result.lost:
                    await raise_if_dead(self._session, self._endpoint, result.error or result.fault or "")

        report(name, 0, len(prompts), "requests")
        await watched(self._endpoint, _all(stream() for _ in range(concurrency)))
        return sorted(results, key=lambda result: result.started)


async def _all(coroutines: Any) -> None:
    """Run together; the first error ends the others at once."""
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def watched(endpoint: Endpoint, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, unless the engine ends first: then it is cancelled at once.

    Raises:
        EngineDied: with what the engine's owner says about its end.
    """
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=_WATCH_INTERVAL))[0]:
            if why := await asyncio.to_thread(endpoint.diagnose):
                raise EngineDied(f"engine died during benchmark: {why}")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def raise_if_dead(session: aiohttp.ClientSession, endpoint: Endpoint, symptom: str) -> None:
    """After a lost request: return if the server still answers, else say that the engine died.

    A dying engine needs seconds until its process is gone, so its owner is asked for a while for the reason.

    Raises:
        EngineDied: the owner says so, or the server's health check fails or is refused.
    """
    now = asyncio.get_running_loop().time
    ends = now() + _EXPLAIN_WITHIN
    while True:
        if why := await asyncio.to_thread(endpoint.diagnose):
            raise EngineDied(f"engine died during benchmark: {why}")
        health = await _health(session, endpoint.url)
        if health is None:
            return
        if health.gone:
            ends = min(ends, now() + _EXPLAIN_GONE)
        if now() >= ends:
            raise EngineDied(f"engine died during benchmark: {symptom}; then {health.text}")
        await asyncio.sleep(_WATCH_INTERVAL)


@dataclass(frozen=True)
class _Sick:
    text: str
    gone: bool


async def _health(session: aiohttp.ClientSession, url: str) -> _Sick | None:
    """What is wrong with the server's health, or None; one that is only slow is not dead."""
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT), session.get(f"{url}/health") as response:
            return _Sick(f"{url}/health said HTTP {response.status}", False) if response.status >= 500 else None
    except TimeoutError:
        return None
    except (aiohttp.ClientError, ConnectionError) as error:
        return _Sick(f"{url} was gone ({error})", True)
