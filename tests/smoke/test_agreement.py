"""Streams against whole answers, in whole smokes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.verdict import Verdict
from tasks.smoke.settings import SmokeSettings
from tests.smoke.server import serving
from tests.smoke.whole import model, named, reference, settings, smoke

__all__ = ["model", "reference", "settings"]


def other_token(chunk: dict[str, Any], key: str) -> None:
    """The first streamed token is another one."""
    choice = chunk["choices"][0]
    choice |= {"token_ids": [99], "text": " Other"}
    choice["logprobs"] = {
        "tokens": ["token_id:99"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:99": -0.5} | json.loads(key)],
    }


@pytest.mark.parametrize(
    ("alternatives", "verdict"),
    [('{"token_id:11": -0.6}', Verdict.PASS), ('{"token_id:11": -3.5}', Verdict.FAIL)],
)
def test_stream_may_part_only_at_a_near_tie(
    alternatives: str, verdict: Verdict, model: Path, settings: SmokeSettings
) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, list) and "chat" not in path:
            other_token(answer[0], alternatives)
        return answer

    with serving(change) as url:
        assert named(smoke(url, model, settings), "streaming")[0] is verdict


def test_stream_with_same_tokens_and_other_text_fails(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, list) and "chat" in path:
            answer[1]["choices"][0]["delta"]["content"] = "</think>"
        return answer

    with serving(change) as url:
        verdict, reason = named(smoke(url, model, settings), "streaming")
    assert verdict is Verdict.FAIL
    assert "text differs" in reason
