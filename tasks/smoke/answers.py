"""What an OpenAI-compatible server sends, checked field by field before it is believed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any


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


def prompt_scores(answer: dict[str, Any], ids: list[int]) -> PromptScores:
    """The scores of the token ids that were sent as a prompt.

    Raises:
        Malformed, Unsupported: see there.
    """
    given = choice_of(answer).get("prompt_logprobs")
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
    return PromptScores(scores, best, usage_of(answer)[0])


class Parts:
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


class Completion(Parts):
    """An answer of /v1/completions."""

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


class Chat(Parts):
    """An answer of /v1/chat/completions."""

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


def refusal(path: str, status: int, text: str) -> str:
    """What to say of an answer that is an HTTP error."""
    return f"{path} answered HTTP {status}: {' '.join(text.split())[:200] or 'nothing'}"


def object_of(text: str) -> dict[str, Any]:
    """The JSON object in the text of an answer, or of a chunk of a stream."""
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


def choice_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The one choice that was asked for."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Malformed("the answer has not exactly one choice")
    return choices[0]


def usage_of(answer: dict[str, Any]) -> tuple[int, int]:
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
