"""A stub OpenAI server: a sound one by default, each fault planted by overriding one answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Change = Callable[[str, dict[str, Any], Any], Any]

#: What the stub always generates: token ids and their texts.
IDS = [11, 12, 13, 14]
TEXTS = [" Paris", " is", " the", " answer"]


def sound(path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What a sound server answers, not streamed: every token at -0.5, the second choice at -1.5."""
    if path == "/tokenize":
        return {"tokens": [1, 2, 3], "count": 3}
    chat = path.endswith("/chat/completions")
    stop = (asked.get("stop") or [None])[0]
    prompt = [1, 2, 3] if chat else asked["prompt"]
    count = min(asked["max_tokens"], len(IDS))
    if stop is not None:
        count = min([n for n in range(count) if stop in TEXTS[n]], default=count)
    ids, texts = IDS[:count], TEXTS[:count]
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": "length" if count == asked["max_tokens"] else "stop",
        "token_ids": ids,
    }
    keys = [f"token_id:{i}" for i in ids]
    if chat:
        choice["message"] = {"role": "assistant", "content": "".join(texts)}
        tops = [[{"token": k, "logprob": -0.5}, {"token": "token_id:99", "logprob": -1.5}] for k in keys]
        content = [{"token": k, "logprob": -0.5, "top_logprobs": t} for k, t in zip(keys, tops, strict=True)]
        choice["logprobs"] = {"content": content}
    else:
        choice["text"] = "".join(texts)
        choice["logprobs"] = {
            "tokens": keys,
            "token_logprobs": [-0.5] * count,
            "top_logprobs": [{k: -0.5, "token_id:99": -1.5} for k in keys],
        }
        if asked.get("prompt_logprobs") is not None:
            entries = [{str(i): {"logprob": -0.5, "rank": 1}, "99": {"logprob": -1.5, "rank": 2}} for i in prompt[1:]]
            choice["prompt_logprobs"] = [None, *entries]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
    return {"choices": [choice], "usage": usage}


def chunks(whole: dict[str, Any], chat: bool) -> Iterator[dict[str, Any]]:
    """A sound answer cut into one chunk for each token, then the reason, then the usage."""
    choice = whole["choices"][0]
    for at, text in enumerate(TEXTS[: len(choice["token_ids"])]):
        piece: dict[str, Any] = {"index": 0, "token_ids": [choice["token_ids"][at]], "finish_reason": None}
        if chat:
            piece |= {"delta": {"content": text}, "logprobs": {"content": [choice["logprobs"]["content"][at]]}}
        else:
            logprobs = {key: [values[at]] for key, values in choice["logprobs"].items()}
            piece |= {"text": text, "logprobs": logprobs}
        yield {"choices": [piece]}
    last = {"index": 0, "finish_reason": choice["finish_reason"], **({"delta": {}} if chat else {"text": ""})}
    yield {"choices": [last]}
    yield {"choices": [], "usage": whole["usage"]}


@contextmanager
def serving(change: Change = lambda path, asked, answer: answer) -> Iterator[str]:
    """Serve; `change` gets path, request and sound answer (a list of chunks if streamed) and returns what is sent.

    An integer is sent as that HTTP status, a string as it is.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "stub", "max_model_len": 512}]}))

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer: Any = sound(self.path, asked)
            if asked.get("stream"):
                answer = list(chunks(answer, "chat" in self.path))
            answer = change(self.path, asked, answer)
            if isinstance(answer, int):
                self._send(answer, "boom")
            elif isinstance(answer, list):
                self._send(200, "".join(f"data: {json.dumps(c)}\n\n" for c in answer) + "data: [DONE]\n\n")
            else:
                self._send(200, answer if isinstance(answer, str) else json.dumps(answer))

        def _send(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
