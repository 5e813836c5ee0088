"""Ready means: a real completion was answered. An open port, or a health route that says 200, is not enough."""

from __future__ import annotations

import time
from typing import Any

import httpx

from day0 import deadline
from day0.artifacts.service import FirstCompletion
from day0.endpoint import EngineDied
from day0.errors import Day0Error
from day0.progress import report
from tasks.service.runtime import Handle, diagnosis

PROMPT = "The capital of France is"
MAX_TOKENS = 8
POLL = 0.5
#: Answers that say "not yet"; any other 4xx says that the request will never be served.
PASSING = (408, 425, 429)


class NotReady(Day0Error):
    """The engine runs, but answered no completion."""


def wait_until_ready(handle: Handle, model: str, timeout: float) -> FirstCompletion:
    """Ask for a completion until one is answered with text and a finish reason.

    Args:
        model: the served name.
        timeout: seconds; the current stage's deadline holds as well.

    Raises:
        EngineDied: it ended meanwhile; the message has its own last error line.
        NotReady: the time is up, or it refuses the request for good.
        StageTimeout, Cancelled: the stage's time is up; the engine has been stopped.
    """
    began = time.monotonic()
    said = "nothing answered yet"
    limit = deadline.current()
    with limit.guard(handle.stop), httpx.Client(base_url=handle.url, trust_env=False) as client:
        while (left := limit.remaining(timeout - (time.monotonic() - began))) is not None and left > 0:
            limit.check()
            if died := diagnosis(handle):
                raise EngineDied(f"the engine did not start: {died}")
            asked = time.monotonic()
            answer, said = _ask(client, model, min(left, timeout))
            if answer is not None:
                return FirstCompletion(**answer, seconds=time.monotonic() - asked)
            report(f"waiting for the engine: {said}", time.monotonic() - began, timeout, "s")
            time.sleep(POLL)
    if died := diagnosis(handle):
        raise EngineDied(f"the engine did not start: {died}")
    raise NotReady(
        f"engine {handle.name} answered no completion within {timeout:g} s ({said}); "
        f"its last line: {handle.last_error()}"
    )


def _ask(client: httpx.Client, model: str, timeout: float) -> tuple[dict[str, Any] | None, str]:
    """The first completion's prompt, text and tokens; or None and why not.

    `ignore_eos` is an extension that vLLM and SGLang know: a model that would end at once still says something.
    """
    body = {"model": model, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    try:
        response = client.post("/v1/completions", json=body, timeout=timeout)
    except httpx.TransportError:
        return None, "it does not answer yet"  # refused, or accepted and closed by Docker's proxy
    if 400 <= response.status_code < 500 and response.status_code not in PASSING:
        raise NotReady(f"the engine refuses completions: HTTP {response.status_code}: {response.text[:300]}")
    if response.status_code != 200:
        return None, f"HTTP {response.status_code}"
    try:
        value = response.json()
        choice = value["choices"][0]
        text, finish, tokens = choice["text"], choice["finish_reason"], value["usage"]["completion_tokens"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return None, f"a malformed completion: {type(error).__name__}: {error}"
    if not isinstance(text, str) or not text or not finish or not isinstance(tokens, int) or tokens < 1:
        return None, f"an empty completion: text {text!r}, finish reason {finish!r}, {tokens} tokens"
    return {"prompt": PROMPT, "text": text, "tokens": tokens}, "ready"
