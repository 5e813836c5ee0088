"""Client of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from day0 import deadline
from day0.endpoint import Endpoint, EngineDied
from day0.errors import Unavailable
from tasks.smoke.answers import (
    Answer,
    Chat,
    Completion,
    Malformed,
    Parts,
    PromptScores,
    Unsupported,
    choice_of,
    object_of,
    prompt_scores,
    refusal,
    usage_of,
)

ALTERNATIVES = 5
T = TypeVar("T")

#: Greedy, and nothing that a generation_config may have set as the server's default.
GREEDY = {"temperature": 0, "top_p": 1, "repetition_penalty": 1.0, "seed": 0, "n": 1}


class Engine:
    """Asks one endpoint. Use inside `asking`."""

    def __init__(self, endpoint: Endpoint, http: httpx.AsyncClient, concurrency: int) -> None:
        self._endpoint = endpoint
        self._http = http
        self._slots = asyncio.Semaphore(concurrency)

    async def score(self, ids: list[int]) -> PromptScores:
        """Teacher-forced scores of given token ids.

        Raises:
            Malformed, Unsupported: see there.
            EngineDied, Unavailable: the connection broke.
        """
        body = {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 1, **GREEDY}
        return prompt_scores(await self._post("/v1/completions", body), ids)

    async def complete(self, ids: list[int], tokens: int, *, stream: bool = False, stop: str | None = None) -> Answer:
        """Greedy continuation of token ids."""
        body = {"prompt": ids, "max_tokens": tokens, "logprobs": ALTERNATIVES, **({"stop": [stop]} if stop else {})}
        return await self._generate("/v1/completions", body, stream, Completion())

    async def chat(self, messages: list[dict[str, Any]], tokens: int, *, stream: bool = False) -> Answer:
        """Greedy answer to a conversation."""
        body = {"messages": messages, "max_tokens": tokens, "logprobs": True, "top_logprobs": ALTERNATIVES}
        return await self._generate("/v1/chat/completions", body, stream, Chat())

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """Token ids that the server's template gives; None if it has no such route."""
        try:
            answer = await self._post("/tokenize", {"messages": messages, "add_generation_prompt": True})
        except Malformed as error:
            if "HTTP 404" in str(error) or "HTTP 405" in str(error):
                return None
            raise
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise Malformed("/tokenize gives no list of token ids")
        return tokens

    async def _generate(self, path: str, body: dict[str, Any], stream: bool, parts: Parts) -> Answer:
        body = {**body, **GREEDY, "return_token_ids": True, "return_tokens_as_token_ids": True}
        if not stream:
            answer = await self._post(path, body)
            parts.add(choice_of(answer), whole=True)
            return parts.answer(usage_of(answer))
        usage = None
        async for chunk in self._stream(path, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            if chunk.get("choices"):
                parts.add(choice_of(chunk), whole=False)
            if chunk.get("usage") is not None:
                usage = usage_of(chunk)
        if usage is None:
            raise Malformed("the stream ended without usage, though include_usage was asked for")
        return parts.answer(usage)

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._slots:
            try:
                response = await self._http.post(path, json={"model": self._endpoint.model, **body})
            except httpx.TransportError as error:
                raise self._broken(error) from error
        if response.status_code != 200:
            raise Malformed(refusal(path, response.status_code, response.text))
        return object_of(response.text)

    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self._slots:
            try:
                async with self._http.stream("POST", path, json={"model": self._endpoint.model, **body}) as response:
                    if response.status_code != 200:
                        text = (await response.aread()).decode(errors="replace")
                        raise Malformed(refusal(path, response.status_code, text))
                    async for line in response.aiter_lines():
                        if not line.startswith("data:"):
                            continue
                        data = line.removeprefix("data:").strip()
                        if data == "[DONE]":
                            return
                        yield object_of(data)
                    raise Malformed("the stream ended without [DONE]")
            except httpx.TransportError as error:
                raise self._broken(error) from error

    def _broken(self, error: httpx.TransportError) -> Exception:
        """Why the connection broke: the engine's own last words if it ended, else what the client saw."""
        if ended := self._endpoint.diagnose():
            return EngineDied(ended)
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return Malformed(f"no answer within {self._http.timeout.read:g} s")
        what = str(error) or type(error).__name__
        return Unavailable(f"no engine answers at {self._endpoint.url} ({what}); is it running?")


def ask(endpoint: Endpoint, timeout: float, concurrency: int, questions: Callable[[Engine], Awaitable[T]]) -> T:
    """Run `questions` against the endpoint, within the current stage's time.

    Raises:
        EngineDied, Unavailable: the connection broke.
        StageTimeout, Cancelled: the stage's time was up; open requests have been dropped.
    """

    async def main() -> T:
        # certificates are read only where they are needed: it takes longer than many answers
        tls = endpoint.url.startswith("https:")
        async with httpx.AsyncClient(base_url=endpoint.url, timeout=timeout, trust_env=False, verify=tls) as http:
            return await questions(Engine(endpoint, http, concurrency))

    return deadline.run_async(main())


@dataclass
class Outcomes:
    """What became of the questions: answers by name, and a sentence for each that got none."""

    asked: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    async def of(self, name: str, question: Awaitable[T]) -> T | None:
        """Await one question; a bad answer is noted under its name."""
        self.asked += 1
        try:
            return await question
        except Malformed as error:
            self.faults[name] = str(error)
        except Unsupported as error:
            self.unsupported[name] = str(error)
        return None

    def raise_if_ended(self, endpoint: Endpoint) -> None:
        """An engine that is ending first gives bad answers.

        Raises:
            EngineDied: an answer was bad, and the engine has ended.
        """
        if self.faults and (ended := endpoint.diagnose()):
            raise EngineDied(ended)


def served_model(url: str, timeout: float = 10.0) -> tuple[str, int | None]:
    """The name of the model that a server serves, and its context length if the server tells it.

    Raises:
        Unavailable: nothing answers there, or it is no OpenAI-compatible server.
    """
    try:
        response = httpx.get(f"{url}/v1/models", timeout=timeout, trust_env=False)
        model = response.json()["data"][0] if response.status_code == 200 else {}
        length = model.get("max_model_len")
        return str(model["id"]), length if isinstance(length, int) and length > 0 else None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"no engine answers at {url} ({error}); start one with day0 serve") from error
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise Unavailable(f"{url} is no OpenAI-compatible server: /v1/models names no model") from error
