"""Whole smokes against a stub server, sound and with each fault planted; the reference is a table of numbers."""

from __future__ import annotations

import copy
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
from tasks.smoke.reference_client import Pair, Prepared, Scored, Scores
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings, load_settings
from tests.smoke.server import IDS, serving, sound

PROMPTS = [
    {"name": "text", "text": "The capital of France is", "generate": 4, "stream": True},
    {"name": "scored", "text": "Water boils at one hundred degrees."},
    {"name": "chat", "messages": [{"role": "user", "content": "Hello"}], "generate": 4, "stream": True},
]


@pytest.fixture
def settings() -> SmokeSettings:
    shipped = load_settings().to_json()
    shipped["thresholds"]["min_positions"] = 10
    return SmokeSettings.model_validate({**shipped, "prompts": PROMPTS, "request_timeout": 5})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that agrees with the stub up to rounding."""

    def prepare(model: Path, prompts: object) -> Prepared:
        return Prepared(
            ids={"text": [5, 6, 7, 8, 9], "scored": list(range(20, 40)), "chat": [1, 2, 3]},
            without_generation_prompt={"chat": [1, 2]},
            faults={},
            special_tokens=["<eos>"],
            chat_template=True,
            library={"library": "table", "torch": "none"},
        )

    def scored(ids: list[int], shift: float) -> Scored:
        noise = [0.01 * math.sin(at) + shift for at in range(1, len(ids))]
        values = [-0.5 + n for n in noise]
        return Scored(values, ids[1:], values, [1.0] * len(values))

    def score(model: Path, sequences: Any, continuations: Any, dtype: str, weights: str | None) -> Scores:
        made = {name: IDS[:count] for name, (_, count) in continuations.items()}
        every = {**sequences, **{n: [*ids, *made[n]] for n, (ids, _) in continuations.items()}}
        return Scores({name: Pair(scored(ids, 0.0), scored(ids, 0.008)) for name, ids in every.items()}, made)

    monkeypatch.setattr(reference_client, "prepare", prepare)
    monkeypatch.setattr(reference_client, "score", score)


def smoke(
    url: str, model: Path, settings: SmokeSettings, kernel_uses: Callable[[], list[bytes]] | None = None
) -> SmokeReport:
    return run_smoke(Endpoint(url, "stub", kernel_uses=kernel_uses), model, settings)


def named(report: SmokeReport, name: str) -> tuple[Verdict, str]:
    check = next(c for c in report.checks if c.name == name)
    return check.verdict, check.reason


def test_sound_server_passes(model: Path, settings: SmokeSettings) -> None:
    with serving() as url:
        report = smoke(url, model, settings)
    assert report.verdict is Verdict.PASS, report.reason
    assert {c.name for c in report.checks} >= {"answers", "template", "streaming", "usage", "repetition", "malformed"}
    assert {p.path for p in report.prompts} == {"prefill", "decode"}
    assert report.ratio is not None
    assert len(report.generations) == 2
    SmokeReport.from_json(json.loads(json.dumps(report.to_json())))


def on_choice(act: Callable[[dict[str, Any]], None], only: str = "") -> Callable[[str, Any, Any], Any]:
    """Change the choice of every whole answer, or of answers on one path."""

    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, dict) and "choices" in answer and only in path:
            act(answer["choices"][0])
        return answer

    return change


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


def test_stop_string_that_is_ignored_fails(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if asked.get("stop"):
            return sound(path, {**asked, "stop": None})
        return answer

    with serving(change) as url:
        verdict, reason = named(smoke(url, model, settings), "finish_reason")
    assert verdict is Verdict.FAIL
    assert "stop string" in reason


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


def test_stream_cut_short_is_a_lost_answer(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        return f"data: {json.dumps(answer[0])}\n\n" if isinstance(answer, list) else answer

    with serving(change) as url:
        assert "[DONE]" in named(smoke(url, model, settings), "answers")[1]


def test_usage_that_counts_wrong_fails(model: Path, settings: SmokeSettings) -> None:
    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, dict) and path == "/v1/completions":
            answer["usage"]["prompt_tokens"] += 1
        return answer

    with serving(change) as url:
        assert named(smoke(url, model, settings), "usage")[0] is Verdict.FAIL


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


def counting(*readings: dict[str, Any] | None) -> Callable[[], list[bytes]]:
    """What an engine's process writes of one kernel: one reading after the other, the last for good; None: nothing."""
    left = list(readings)

    def read() -> list[bytes]:
        now = left.pop(0) if len(left) > 1 else left[0]
        if now is None:
            return []
        use = {"operator": "vllm::silu_and_mul", "kernel": "act", "calls": 0, "fallbacks": 0} | now
        return [json.dumps([use]).encode()]

    return read


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.smoke.kernels.INTERVAL", 0.01)


def test_calls_that_the_requests_brought_to_kernels_are_counted(
    model: Path, settings: SmokeSettings, at_once: None
) -> None:
    # 30 of a warm-up; then it is still counting, and then at rest.
    uses = counting(*({"calls": n} for n in (30, 30, 90, 100)))
    with serving() as url:
        report = smoke(url, model, settings, uses)
    assert named(report, "kernels") == (
        Verdict.PASS, "kernels answered 70 calls (70 act for vllm::silu_and_mul)"
    )  # fmt: skip
    assert "kernels answered 70 calls" in report.reason


def test_a_kernel_that_failed_is_followed_up_where_the_model_is_good(
    model: Path, settings: SmokeSettings, at_once: None
) -> None:
    uses = counting({"fallbacks": 7, "reason": "RuntimeError: no such block"})
    with serving() as url:
        report = smoke(url, model, settings, uses)
    assert report.verdict is Verdict.PASS
    assert "to follow up: kernel act failed 7 calls of vllm::silu_and_mul" in report.reason
    with serving(lambda path, asked, answer: 500 if path.endswith("/chat/completions") else answer) as url:
        report = smoke(url, model, settings, uses)
    assert named(report, "kernels")[0] is Verdict.FAIL


def test_a_plugin_that_was_not_loaded_is_no_pass(model: Path, settings: SmokeSettings, at_once: None) -> None:
    with serving() as url:
        report = smoke(url, model, settings, counting(None))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "their plugin was not loaded" in report.reason
    with serving() as url:
        assert "kernels" not in {check.name for check in smoke(url, model, settings).checks}
