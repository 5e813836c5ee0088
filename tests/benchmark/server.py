"""A streaming server that answers as a test tells it to: it stands in for engines and for their faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from day0.endpoint import Endpoint

Answer = Callable[["StubServer", web.StreamResponse, dict[str, Any]], Awaitable[None]]


async def send(response: web.StreamResponse, event: dict[str, Any] | str) -> None:
    data = event if isinstance(event, str) else json.dumps(event)
    await response.write(f"data: {data}\n\n".encode())


def usage(body: dict[str, Any], tokens: int) -> dict[str, int]:
    return {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}


async def plain(_server: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
    """One token a chunk, with its id, and usage at the end: as vLLM does."""
    wanted = body["max_tokens"]
    for index in range(wanted):
        reason = "length" if index == wanted - 1 else None
        await send(response, {"choices": [{"text": "a", "token_ids": [index], "finish_reason": reason}]})
        await asyncio.sleep(0.001)
    await send(response, {"choices": [], "usage": usage(body, wanted)})
    await send(response, "[DONE]")


@dataclass
class StubServer:
    """Serves on the loopback, in the running event loop. `block` tokens make one entry of its prefix cache."""

    answer: Answer = plain
    block: int = 16
    metrics: bool = True
    healthy: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    queries: int = 0
    hits: int = 0
    _cache: set[tuple[int, ...]] = field(default_factory=set)

    async def __aenter__(self) -> StubServer:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def endpoint(self, diagnose: Callable[[], str | None] = lambda: None) -> Endpoint:
        return Endpoint(self.url, "stub", diagnose)

    async def stop(self) -> None:
        """Close the port and every connection, as a killed process does."""
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self._look_up(body["prompt"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if self.answer is failing:
            return web.json_response({"error": {"message": "out of cache blocks"}}, status=500)
        await response.prepare(request)
        await self.answer(self, response, body)
        return response

    def _look_up(self, prompt: list[int]) -> None:
        """Count tokens as a block-wise prefix cache does: whole blocks that begin a prompt seen before."""
        self.queries += len(prompt)
        found = True
        for end in range(self.block, len(prompt) + 1, self.block):
            key = tuple(prompt[:end])
            found = found and key in self._cache
            self.hits += self.block * found
            self._cache.add(key)

    async def _metrics(self, _request: web.Request) -> web.Response:
        if not self.metrics:
            return web.Response(status=404)
        return web.Response(
            text=f"# HELP vllm:prefix_cache_queries_total Tokens.\n"
            f'vllm:prefix_cache_queries_total{{engine="0"}} {float(self.queries)}\n'
            f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.hits)}\n'
        )

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "stub 1"})


async def failing(_server: StubServer, _response: web.StreamResponse, _body: dict[str, Any]) -> None:
    """Marks a server that answers every request with HTTP 500."""
