"""One streaming completion, with the time of arrival of each of its tokens.

Own client because the load generator shares the machine with the engine on small targets: other clients took
one to ten processes and up to a gigabyte there, and lowered the engine's throughput.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Result:
    """What one request did. Times are seconds of `time.perf_counter`."""

    started: float
    prompt_tokens: int
    """Asked for; `usage` tells what the engine counted."""
    output_tokens: int
    """Asked for."""
    arrivals: list[float] = field(default_factory=list)
    """One time per token."""
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=dict)
    counted_by: str | None = None
    """How tokens were told apart: `token_ids`, `usage`, or `chunks` (one token a chunk assumed, then verified)."""
    error: str | None = None
    lost: bool = False
    """The connection or the server failed, as an engine that dies makes it."""
    timed_out: bool = False

    @property
    def fault(self) -> str | None:
        """Why this request does not count, or None."""
        got = len(self.arrivals)
        if self.error:
            return self.error
        if self.finish_reason is None:
            return f"the stream was cut after {got} of {self.output_tokens} tokens, without a finish reason"
        if got != self.output_tokens:
            return f"{got} of {self.output_tokens} tokens came (finish reason {self.finish_reason!r})"
        if (counted := self.usage.get("completion_tokens")) is not None and counted != got:
            return f"the engine counts {counted} output tokens, the stream carried {got}"
        if (counted := self.usage.get("prompt_tokens")) is not None and counted != self.prompt_tokens:
            return f"the engine counts {counted} prompt tokens, {self.prompt_tokens} were sent"
        return None


async def complete(
    session: aiohttp.ClientSession, url: str, model: str, prompt: Sequence[int], output_tokens: int, limit: float
) -> Result:
    """Send token ids to `url`/v1/completions, greedy, and read the stream to its end, within `limit` seconds.

    Failures are recorded in the result, never raised; cancellation is raised.
    """
    payload = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
    result = Result(started=time.perf_counter(), prompt_tokens=len(prompt), output_tokens=output_tokens)
    try:
        async with (
            asyncio.timeout(limit),
            session.post(f"{url}/v1/completions", json=payload, timeout=aiohttp.ClientTimeout(total=None)) as response,
        ):
            if response.status != 200:
                result.lost = response.status >= 500
                result.error = f"HTTP {response.status}: {_message(await response.text())}"
                return result
            async for arrived, event in _events(response.content):
                _take(result, arrived, event)
    except TimeoutError:
        got = len(result.arrivals)
        result.error = f"not finished within {limit:g} s ({got} of {output_tokens} tokens came)"
        result.lost = result.timed_out = True
    except (aiohttp.ClientError, ConnectionError) as error:
        result.error = f"the connection failed: {str(error) or type(error).__name__}"
        result.lost = True
    except ValueError as error:
        result.error = f"the stream is malformed: {error}"
    if result.finish_reason is None:
        result.lost = True
    return result


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """The JSON of each server-sent event up to `[DONE]`, with the time at which its bytes were read."""
    pending = b""
    async for piece in content.iter_any():
        arrived = time.perf_counter()
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if not isinstance(event, dict):
                raise ValueError(f"an event is {type(event).__name__}, not an object")
            yield arrived, event


def _take(result: Result, arrived: float, event: dict[str, Any]) -> None:
    """Enter one event into a result."""
    if error := event.get("error"):
        result.error = f"the server reports in the stream: {_message(json.dumps({'error': error}))}"
        result.lost = True
        return
    usage = event.get("usage")
    if isinstance(usage, dict):
        result.usage = {k: v for k, v in usage.items() if isinstance(v, int)}
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return
    choice = choices[0]
    result.finish_reason = choice.get("finish_reason") or result.finish_reason
    count, by = _tokens(choice, len(result.arrivals), usage if isinstance(usage, dict) else None)
    if count > 0:
        result.arrivals.extend([arrived] * count)
        result.counted_by = by


def _tokens(choice: dict[str, Any], before: int, usage: dict[str, Any] | None) -> tuple[int, str]:
    """How many tokens a chunk carries. Chunks are not tokens: several may share one, and a chunk may be empty."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids), "token_ids"
    if usage is not None and isinstance(counted := usage.get("completion_tokens"), int):
        return counted - before, "usage"
    delta = choice.get("delta")
    parts = delta if isinstance(delta, dict) else choice
    carries = any(parts.get(key) for key in ("text", "content", "reasoning", "reasoning_content"))
    return int(carries), "chunks"


def _message(body: str) -> str:
    """The message of an OpenAI-style error body, at most 300 characters, on one line."""
    try:
        value = json.loads(body)
    except ValueError:
        value = body
    if isinstance(value, dict):
        value = value.get("error", value)
    if isinstance(value, dict):
        value = value.get("message", value)
    return " ".join(str(value).split())[:300] or "no message"
