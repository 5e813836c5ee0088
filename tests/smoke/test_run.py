"""Whole smokes against a stub server, sound and with each fault planted; the reference is a table of numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.smoke import SmokeReport
from day0.endpoint import Endpoint, EngineDied
from day0.errors import EvidenceMissing, InputError, Unavailable
from day0.verdict import Verdict
from flows.cli import main
from tasks.smoke import reference_client
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings
from tests.smoke.server import serving
from tests.smoke.whole import PROMPTS, model, named, on_choice, reference, settings, smoke

__all__ = ["model", "reference", "settings"]


def test_sound_server_passes(model: Path, settings: SmokeSettings) -> None:
    with serving() as url:
        report = smoke(url, model, settings)
    assert report.verdict is Verdict.PASS, report.reason
    assert {c.name for c in report.checks} >= {"answers", "template", "streaming", "usage", "repetition", "malformed"}
    assert {p.path for p in report.prompts} == {"prefill", "decode"}
    assert report.ratio is not None
    assert len(report.generations) == 2
    SmokeReport.from_json(json.loads(json.dumps(report.to_json())))


def nan_logprob(choice: dict[str, Any]) -> None:
    if "prompt_logprobs" in choice:
        next(iter(choice["prompt_logprobs"][2].values()))["logprob"] = math.nan


def null_logprob(choice: dict[str, Any]) -> None:
    if "prompt_logprobs" in choice:
        choice["prompt_logprobs"][2] = None


def lost_position(choice: dict[str, Any]) -> None:
    if "prompt_logprobs" in choice:
        choice["prompt_logprobs"].pop()


def wrong_logprob(choice: dict[str, Any]) -> None:
    for entry in choice.get("prompt_logprobs") or []:
        for value in (entry or {}).values():
            value["logprob"] -= 0.4


def wrong_top1(choice: dict[str, Any]) -> None:
    for entry in choice.get("prompt_logprobs") or []:
        if entry:
            entry["99"]["logprob"] = -0.1


def text(value: Any) -> Callable[[dict[str, Any]], None]:
    def act(choice: dict[str, Any]) -> None:
        if "message" in choice:
            choice["message"]["content"] = value
        else:
            choice["text"] = value

    return act


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (on_choice(nan_logprob), "answers", "nan"),
        (on_choice(null_logprob), "answers", "position 2"),
        (on_choice(lost_position), "answers", "entries for"),
        (on_choice(wrong_logprob), "parity.ratio", "more than"),
        (on_choice(wrong_top1), "parity.top1_agreement", "less than"),
        (on_choice(text(None)), "answers", "null"),
        (on_choice(text("")), "malformed", "empty"),
        (on_choice(text("\ufffd\ufffd and")), "malformed", "U+FFFD"),
        (on_choice(text("Paris<eos>")), "malformed", "<eos>"),
        (on_choice(lambda c: c.pop("finish_reason")), "answers", "finish_reason"),
        (on_choice(lambda c: c.update(finish_reason="abort")), "finish_reason", "abort"),
        (lambda path, asked, answer: 500 if "chat" in path else answer, "answers", "HTTP 500"),
        (lambda path, asked, answer: "<html>" if "chat" in path else answer, "answers", "not JSON"),
        (lambda path, asked, answer: {"choices": []} if "chat" in path else answer, "answers", "one choice"),
    ],
)
def test_planted_fault_fails(
    change: Callable[[str, Any, Any], Any], check: str, words: str, model: Path, settings: SmokeSettings
) -> None:
    with serving(change) as url:
        report = smoke(url, model, settings)
    verdict, reason = named(report, check)
    assert verdict is Verdict.FAIL
    assert words in reason
    assert report.verdict is Verdict.FAIL


def test_server_that_only_errs_fails(model: Path, settings: SmokeSettings) -> None:
    with serving(lambda path, asked, answer: 500) as url:
        report = smoke(url, model, settings)
    assert report.verdict is Verdict.FAIL
    assert "HTTP 500" in report.reason


def test_nan_logprob_of_generated_token_is_malformed(model: Path, settings: SmokeSettings) -> None:
    def act(choice: dict[str, Any]) -> None:
        choice["logprobs"]["token_logprobs"][-1] = math.nan

    with serving(on_choice(act, "/v1/completions")) as url:
        assert named(smoke(url, model, settings), "answers")[0] is Verdict.FAIL


def test_token_zero_only_is_a_loop_that_the_reference_does_not_explain(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if "completions" not in path or isinstance(answer, list) or "chat" in path:
            return answer
        count = asked["max_tokens"]
        choice = answer["choices"][0]
        choice |= {"text": "!" * count, "token_ids": [0] * count, "finish_reason": "length"}
        keys = ["token_id:0"] * count
        choice["logprobs"] = {
            "tokens": keys,
            "token_logprobs": [-9.0] * count,
            "top_logprobs": [{"token_id:0": -9.0}] * count,
        }
        answer["usage"]["completion_tokens"] = count
        return answer

    prompts = [{**PROMPTS[0], "generate": 40}, *PROMPTS[1:]]
    settings = SmokeSettings.model_validate({**settings.to_json(), "prompts": prompts})
    with serving(change) as url:
        report = smoke(url, model, settings)
    assert named(report, "repetition")[0] is Verdict.FAIL
    assert named(report, "streaming")[0] is Verdict.FAIL


def test_stream_cut_short_is_a_lost_answer(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        return f"data: {json.dumps(answer[0])}\n\n" if isinstance(answer, list) else answer

    with serving(change) as url:
        assert "[DONE]" in named(smoke(url, model, settings), "answers")[1]


def test_engine_without_prompt_logprobs_is_inconclusive(model: Path, settings: SmokeSettings) -> None:
    with serving(on_choice(lambda c: c.pop("prompt_logprobs", None))) as url:
        report = smoke(url, model, settings)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.ratio is None


def test_no_thresholds_is_inconclusive(model: Path, settings: SmokeSettings) -> None:
    bare = SmokeSettings.model_validate({**settings.to_json(), "thresholds": {}})
    with serving() as url:
        assert smoke(url, model, bare).verdict is Verdict.INCONCLUSIVE


def test_dead_engine_is_reported_with_its_last_words(model: Path, settings: SmokeSettings) -> None:
    endpoint = Endpoint("http://127.0.0.1:9", "stub", diagnose=lambda: "the engine ended with code 137: out of memory")
    with pytest.raises(EngineDied, match="137: out of memory"):
        run_smoke(endpoint, model, settings)
    with pytest.raises(Unavailable, match="no engine answers"):
        run_smoke(Endpoint("http://127.0.0.1:9", "stub"), model, settings)


def test_folder_without_config_is_refused(tmp_path: Path, settings: SmokeSettings) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        smoke("http://127.0.0.1:9", tmp_path / "nothing", settings)


def test_command_exit_codes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as gone:
        main(["smoke", "--json", "--endpoint", "http://127.0.0.1:9", "--model", str(model)])
    assert gone.value.code == 4
    assert "no engine answers" in json.loads(capsys.readouterr().out)["error"]


def test_reference_extra_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_client, "NEEDS", ("torch_is_not_here",))
    with pytest.raises(EvidenceMissing, match=r"pip install 'day0\[reference\]'") as missing:
        reference_client._ask({})
    assert missing.value.exit_code == 3
