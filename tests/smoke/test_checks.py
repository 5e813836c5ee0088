"""Templates, counts of tokens and ends of answers, in whole smokes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from day0.verdict import Verdict
from tasks.smoke import reference_client
from tasks.smoke.reference_client import Prepared
from tasks.smoke.settings import SmokeSettings
from tests.smoke.server import serving, sound
from tests.smoke.whole import model, named, reference, settings, smoke

__all__ = ["model", "reference", "settings"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [([1, 2], "generation prompt"), ([1, 2, 4], "differ from token 2")],
)
def test_template_that_renders_otherwise_fails(
    tokens: list[int], words: str, model: Path, settings: SmokeSettings
) -> None:
    with serving(lambda path, asked, answer: {"tokens": tokens} if path == "/tokenize" else answer) as url:
        verdict, reason = named(smoke(url, model, settings), "template")
    assert verdict is Verdict.FAIL
    assert words in reason


def test_parts_must_render_as_a_string(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if path == "/tokenize" and isinstance(asked["messages"][0]["content"], list):
            return {"tokens": [1, 2, 7, 3]}
        return answer

    with serving(change) as url:
        assert "list of text parts" in named(smoke(url, model, settings), "template")[1]


def test_missing_template_fails(model: Path, settings: SmokeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = copy.copy(reference_client.prepare(model, ()))
    lacking = Prepared(
        **{**vars(prepared), "chat_template": False, "faults": {"chat": "the model has no chat template"}}
    )
    lacking.ids.pop("chat")
    monkeypatch.setattr(reference_client, "prepare", lambda model, prompts: lacking)
    with serving() as url:
        verdict, reason = named(smoke(url, model, settings), "template")
    assert verdict is Verdict.FAIL
    assert "no chat template" in reason


def test_usage_that_counts_wrong_fails(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, dict) and path == "/v1/completions":
            answer["usage"]["prompt_tokens"] += 1
        return answer

    with serving(change) as url:
        assert named(smoke(url, model, settings), "usage")[0] is Verdict.FAIL


def test_stop_string_that_is_ignored_fails(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if asked.get("stop"):
            return sound(path, {**asked, "stop": None})
        return answer

    with serving(change) as url:
        verdict, reason = named(smoke(url, model, settings), "finish_reason")
    assert verdict is Verdict.FAIL
    assert "stop string" in reason
