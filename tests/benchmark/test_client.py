"""What the client makes of streams, sound and unsound."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tasks.benchmark.client import Result, complete
from tests.benchmark.server import Answer, StubServer, failing, plain, send, usage

PROMPT = list(range(40))


async def ask(answer: Answer, tokens: int = 4, limit: float = 10) -> Result:
    async with StubServer(answer) as server, aiohttp.ClientSession() as session:
        return await complete(session, server.url, "stub", PROMPT, tokens, limit)


async def test_one_token_a_chunk() -> None:
    result = await ask(plain)
    assert result.fault is None
    assert len(result.arrivals) == 4
    assert result.finish_reason == "length"
    assert result.counted_by == "token_ids"
    assert result.started < result.arrivals[0] < result.arrivals[-1]


async def test_ttft_skips_the_role_chunk_and_takes_reasoning() -> None:
    pause = 0.05
    sent: dict[str, float] = {}
    clock = asyncio.get_running_loop().time

    async def reasoning_first(_s: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        await send(response, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(pause)
        for delta in ({"reasoning": "hm"}, {"reasoning_content": "so"}, {"content": "Paris"}):
            sent.setdefault("first", clock())
            await send(response, {"choices": [{"delta": delta}]})
            await asyncio.sleep(pause)
        await send(response, {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage(body, 3)})
        await send(response, "[DONE]")

    result = await ask(reasoning_first, tokens=3)
    assert result.fault is None
    assert result.counted_by == "usage" or len(result.arrivals) == 3
    assert result.arrivals[0] - result.started >= pause
    # perf_counter and the loop's clock are the same clock on Linux.
    assert result.arrivals[0] >= sent["first"]
    assert result.arrivals[1] - result.arrivals[0] > 0


@pytest.mark.parametrize("told_by", ["token_ids", "usage"])
async def test_several_tokens_in_a_chunk_are_all_counted(told_by: str) -> None:
    async def chunks(_s: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        done = 0
        for size in (3, 0, 2, 1):
            done += size
            choice: dict[str, Any] = {"text": "abc"[:size], "finish_reason": "length" if done == 6 else None}
            event: dict[str, Any] = {"choices": [choice]}
            if told_by == "token_ids":
                choice["token_ids"] = [7] * size
            else:
                event["usage"] = usage(body, done)
            await send(response, event)
            await asyncio.sleep(0.01)
        await send(response, "[DONE]")

    result = await ask(chunks, tokens=6)
    assert result.fault is None
    assert result.counted_by == told_by
    assert len(result.arrivals) == 6
    assert len(set(result.arrivals)) == 3


async def test_a_chunk_split_anywhere_is_read_whole() -> None:
    async def in_pieces(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        data = 'data: {"choices":[{"text":"é","token_ids":[1],"finish_reason":"length"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
        for byte in data.encode():
            await response.write(bytes([byte]))
            await asyncio.sleep(0)

    result = await ask(in_pieces, tokens=1)
    assert result.fault is None


async def test_a_first_chunk_larger_than_any_line_limit_is_read() -> None:
    async def long_line(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, {"choices": [{"token_ids": [1], "prompt_token_ids": list(range(100_000))}]})
        await send(response, {"choices": [{"token_ids": [], "finish_reason": "length"}]})
        await send(response, "[DONE]")

    result = await ask(long_line, tokens=1)
    assert result.fault is None


async def test_a_cut_stream_is_a_fault() -> None:
    async def cut(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, {"choices": [{"text": "a", "token_ids": [1]}]})
        await asyncio.sleep(0.02)
        assert response._req is not None
        assert response._req.transport is not None
        response._req.transport.abort()

    result = await ask(cut)
    assert result.lost
    assert "connection failed" in (result.fault or "") or "cut after 1 of 4" in (result.fault or "")


async def test_a_stream_that_ends_early_without_a_reason_is_a_fault() -> None:
    async def silent_end(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, {"choices": [{"text": "a", "token_ids": [1]}]})

    result = await ask(silent_end)
    assert result.lost
    assert result.fault == "the stream was cut after 1 of 4 tokens, without a finish reason"


async def test_too_few_tokens_are_a_fault() -> None:
    async def stops(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, {"choices": [{"text": "a", "token_ids": [1], "finish_reason": "stop"}]})
        await send(response, "[DONE]")

    result = await ask(stops)
    assert result.fault == "1 of 4 tokens came (finish reason 'stop')"


async def test_a_server_that_counts_otherwise_is_a_fault() -> None:
    async def adds_a_token(_s: StubServer, response: web.StreamResponse, body: dict[str, Any]) -> None:
        counted = {**usage(body, 1), "prompt_tokens": len(body["prompt"]) + 1}
        await send(
            response, {"choices": [{"text": "a", "token_ids": [1], "finish_reason": "length"}], "usage": counted}
        )
        await send(response, "[DONE]")

    result = await ask(adds_a_token, tokens=1)
    assert result.fault == "the engine counts 41 prompt tokens, 40 were sent"


async def test_http_500_carries_the_servers_words() -> None:
    result = await ask(failing)
    assert result.fault == "HTTP 500: out of cache blocks"
    assert result.lost


async def test_an_error_within_the_stream() -> None:
    async def error(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, {"error": {"message": "EngineCore encountered an issue", "code": 500}})
        await send(response, "[DONE]")

    result = await ask(error)
    assert result.fault == "the server reports in the stream: EngineCore encountered an issue"
    assert result.lost


@pytest.mark.parametrize("garbage", ["{not json", "[1, 2]", '"text"'])
async def test_garbage_is_a_fault_not_a_crash(garbage: str) -> None:
    async def nonsense(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, garbage)

    result = await ask(nonsense)
    assert "malformed" in (result.fault or "")


async def test_a_request_ends_at_its_limit() -> None:
    async def hangs(_s: StubServer, response: web.StreamResponse, _body: dict[str, Any]) -> None:
        await send(response, {"choices": [{"text": "a", "token_ids": [1]}]})
        await asyncio.sleep(30)

    result = await ask(hangs, limit=0.2)
    assert result.timed_out
    assert result.fault == "not finished within 0.2 s (1 of 4 tokens came)"
