"""Client of an OpenAI-compatible server. Whatever it sends is checked field by field before it is believed."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from day0 import deadline
from day0.endpoint import Endpoint, EngineDied
from day0.errors import Unavailable

ALTERNATIVES = 5
T = TypeVar("T")

#: Greedy, and nothing that a generation_config may have set as the server's default.
GREEDY = {"temperature": 0, "top_p": 1, "repetition_penalty": 1.0, "seed": 0, "n": 1}


class Malformed(Exception):
    """An answer that no sound server gives; the message names the field."""


class Unsupported(Exception):
    """The server does not give what was asked, so there is no evidence: not a fault of the answer."""


@dataclass(frozen=True)
class Answer:
    """One generated answer. Keys of `alternatives` are token ids where the server tells them, else token texts."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    token_ids: list[int] | None
    logprobs: list[float] | None
    alternatives: list[dict[str, float]] | None
    keys: list[str] | None
    """The chosen token at each step, spelled as in `alternatives`."""


@dataclass(frozen=True)
class PromptScores:
    """Log-probability of each given token from position 1 on, and the most likely token there."""

    logprobs: list[float]
    top1: list[int]
    prompt_tokens: int


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
        answer = await self._post("/v1/completions", body)
        choice = _choice(answer)
        given = choice.get("prompt_logprobs")
        if given is None:
            raise Unsupported("the server gives no prompt_logprobs")
        if not isinstance(given, list) or len(given) != len(ids):
            size = len(given) if isinstance(given, list) else "no list"
            raise Malformed(f"prompt_logprobs has {size} entries for {len(ids)} tokens")
        scores, best = [], []
        for position in range(1, len(ids)):
            logprob, top = _position(given[position], ids[position], position)
            scores.append(logprob)
            best.append(top)
        return PromptScores(scores, best, _usage(answer)[0])

    async def complete(self, ids: list[int], tokens: int, *, stream: bool = False, stop: str | None = None) -> Answer:
        """Greedy continuation of token ids."""
        body = {"prompt": ids, "max_tokens": tokens, "logprobs": ALTERNATIVES, **({"stop": [stop]} if stop else {})}
        return await self._generate("/v1/completions", body, stream, _Completion())

    async def chat(self, messages: list[dict[str, Any]], tokens: int, *, stream: bool = False) -> Answer:
        """Greedy answer to a conversation."""
        body = {"messages": messages, "max_tokens": tokens, "logprobs": True, "top_logprobs": ALTERNATIVES}
        return await self._generate("/v1/chat/completions", body, stream, _Chat())

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

    async def _generate(self, path: str, body: dict[str, Any], stream: bool, parts: _Parts) -> Answer:
        body = {**body, **GREEDY, "return_token_ids": True, "return_tokens_as_token_ids": True}
        if not stream:
            answer = await self._post(path, body)
            parts.add(_choice(answer), whole=True)
            return parts.answer(_usage(answer))
        usage = None
        async for chunk in self._stream(path, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            if chunk.get("choices"):
                parts.add(_choice(chunk), whole=False)
            if chunk.get("usage") is not None:
                usage = _usage(chunk)
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
            raise Malformed(_refusal(path, response.status_code, response.text))
        return _object(response.text)

    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async with self._slots:
            try:
                async with self._http.stream("POST", path, json={"model": self._endpoint.model, **body}) as response:
                    if response.status_code != 200:
                        text = (await response.aread()).decode(errors="replace")
                        raise Malformed(_refusal(path, response.status_code, text))
                    async for line in response.aiter_lines():
                        if not line.startswith("data:"):
                            continue
                        data = line.removeprefix("data:").strip()
                        if data == "[DONE]":
                            return
                        yield _object(data)
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


class _Parts:
    """Collects an answer that comes whole or in pieces."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: list[int] | None = None
        self.keys: list[str] = []
        self.logprobs: list[float] = []
        self.alternatives: list[dict[str, float]] = []
        self.finish: str | None = None

    def add(self, choice: dict[str, Any], *, whole: bool) -> None:
        """Take one choice of an answer, or of a chunk of a stream."""
        text = self._text(choice, whole)
        if text is not None and not isinstance(text, str):
            raise Malformed(f"the text is {type(text).__name__}, not a string")
        if text is None and whole:
            raise Malformed("the text is null")
        self.texts.append(text or "")
        ids = choice.get("token_ids")
        if ids is not None:
            if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                raise Malformed("token_ids is not a list of integers")
            self.ids = [*(self.ids or []), *ids]
        if choice.get("logprobs") is not None:
            self._take_logprobs(choice["logprobs"])
        if (finish := choice.get("finish_reason")) is not None:
            if not isinstance(finish, str):
                raise Malformed("finish_reason is not a string")
            self.finish = finish

    def answer(self, usage: tuple[int, int]) -> Answer:
        """The whole answer."""
        if self.finish is None:
            raise Malformed("finish_reason is missing")
        ids = self.ids
        if ids is None and self.keys and all(k.startswith("token_id:") for k in self.keys):
            ids = [int(k.removeprefix("token_id:")) for k in self.keys]
        have = bool(self.logprobs)
        return Answer(
            text="".join(self.texts),
            finish_reason=self.finish,
            prompt_tokens=usage[0],
            completion_tokens=usage[1],
            token_ids=ids,
            logprobs=self.logprobs if have else None,
            alternatives=self.alternatives if have else None,
            keys=self.keys if have else None,
        )

    def _text(self, choice: dict[str, Any], whole: bool) -> Any:
        raise NotImplementedError

    def _take_logprobs(self, logprobs: Any) -> None:
        raise NotImplementedError

    def _take(self, key: Any, logprob: Any, alternatives: dict[str, float]) -> None:
        if not isinstance(key, str):
            raise Malformed("a token in logprobs is not a string")
        self.keys.append(key)
        self.logprobs.append(_logprob(logprob, f"generated token {len(self.logprobs)}"))
        self.alternatives.append(alternatives)


class _Completion(_Parts):
    def _text(self, choice: dict[str, Any], whole: bool) -> Any:
        return choice.get("text")

    def _take_logprobs(self, logprobs: Any) -> None:
        tokens, values, tops = (_get(logprobs, k) for k in ("tokens", "token_logprobs", "top_logprobs"))
        tops = tops if tops is not None else [None] * len(tokens or ())
        if not (isinstance(tokens, list) and isinstance(values, list) and isinstance(tops, list)):
            raise Malformed("logprobs lacks tokens or token_logprobs")
        if not len(tokens) == len(values) == len(tops):
            raise Malformed(f"logprobs has {len(tokens)} tokens and {len(values)} values")
        for token, value, top in zip(tokens, values, tops, strict=True):
            if top is not None and not isinstance(top, dict):
                raise Malformed("top_logprobs holds something that is no object")
            self._take(token, value, {k: _logprob(v, "top_logprobs") for k, v in (top or {}).items()})


class _Chat(_Parts):
    def _text(self, choice: dict[str, Any], whole: bool) -> Any:
        message = choice.get("message" if whole else "delta")
        if not isinstance(message, dict):
            raise Malformed("the message is missing")
        return message.get("content")

    def _take_logprobs(self, logprobs: Any) -> None:
        content = _get(logprobs, "content")
        if content is None:
            return
        if not isinstance(content, list):
            raise Malformed("logprobs.content is no list")
        for entry in content:
            tops = _get(entry, "top_logprobs") or []
            if not isinstance(tops, list):
                raise Malformed("top_logprobs is no list")
            alternatives = {str(_get(t, "token")): _logprob(_get(t, "logprob"), "top_logprobs") for t in tops}
            self._take(_get(entry, "token"), _get(entry, "logprob"), alternatives)


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


def _refusal(path: str, status: int, text: str) -> str:
    return f"{path} answered HTTP {status}: {' '.join(text.split())[:200] or 'nothing'}"


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Malformed(f"the answer is not JSON: {text[:80]!r}") from error
    if not isinstance(value, dict):
        raise Malformed("the answer is no JSON object")
    if value.get("error") is not None and "choices" not in value:
        raise Malformed(f"the server reports an error: {str(value['error'])[:200]}")
    return value


def _get(value: Any, key: str) -> Any:
    if not isinstance(value, dict):
        raise Malformed(f"{key}: there is no object that holds it")
    return value.get(key)


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Malformed("the answer has not exactly one choice")
    return choices[0]


def _usage(answer: dict[str, Any]) -> tuple[int, int]:
    """Prompt tokens and completion tokens."""
    usage = answer.get("usage")
    counts = tuple(_get(usage, key) for key in ("prompt_tokens", "completion_tokens"))
    if not all(isinstance(c, int) and not isinstance(c, bool) and c >= 0 for c in counts):
        raise Malformed(f"usage is not two counts: {usage!r}"[:200])
    return counts[0], counts[1]


def _logprob(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"log-probability of {where} is {value!r}")
    if not math.isfinite(value) or value > 1e-3:
        raise Malformed(f"log-probability of {where} is {value}")
    return float(value)


def _position(entry: Any, token: int, position: int) -> tuple[float, int]:
    """The given token's log-probability and the most likely token, of one entry of prompt_logprobs."""
    if not isinstance(entry, dict) or str(token) not in entry:
        raise Malformed(f"prompt_logprobs at position {position} lacks the token that was sent")
    values = {key: _logprob(_get(v, "logprob"), f"position {position}") for key, v in entry.items()}
    best = max(values, key=values.__getitem__)
    if not best.isdigit():
        raise Malformed(f"prompt_logprobs at position {position} has a key that is no token id")
    return values[str(token)], int(best)
