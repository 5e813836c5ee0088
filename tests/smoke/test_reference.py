"""The reference process against transformers called directly, and A/A: the reference against itself passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from day0.errors import EvidenceMissing
from tasks.smoke import reference_client
from tasks.smoke.limits import parity
from tasks.smoke.parity import Compared, compare
from tasks.smoke.reference_client import Pair, Scored
from tasks.smoke.settings import Prompt, load_settings
from tests.models.tiny import make_tiny_llama

pytestmark = pytest.mark.reference

LIMITS = load_settings().thresholds
IDS = [(7 * n * n + 3 * n) % 512 for n in range(1, 600)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def scores(model: Path) -> reference_client.Scores:
    return reference_client.score(model, {"a": IDS}, {"b": (IDS[:20], 6)}, "bfloat16")


def direct(model: Path, ids: list[int]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    loaded = loader.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        return torch.log_softmax(loaded(torch.tensor([ids])).logits[0], dim=-1)


def test_scores_are_those_of_transformers(model: Path, scores: reference_client.Scores) -> None:
    table = direct(model, IDS)
    found = scores.pairs["a"].float32
    assert found.logprobs == pytest.approx([float(table[i, IDS[i + 1]]) for i in range(len(IDS) - 1)], abs=1e-4)
    assert found.top1_logprobs == pytest.approx(table[:-1].max(dim=-1).values.tolist(), abs=1e-4)
    assert all(lead >= 0 for lead in found.lead)


def test_continuation_is_greedy_and_scored(model: Path, scores: reference_client.Scores) -> None:
    made = scores.continuations["b"]
    whole = scores.pairs["b"].float32
    assert 1 <= len(made) <= 6
    assert whole.top1[19:] == made
    assert len(whole.logprobs) == 20 + len(made) - 1


def test_working_precision_rounds(scores: reference_client.Scores) -> None:
    pair = scores.pairs["a"]
    errors = [abs(a - b) for a, b in zip(pair.float32.logprobs, pair.working.logprobs, strict=True)]
    assert 0 < sum(errors) / len(errors) < 0.2


def compared(engine: Scored, pair: Pair) -> Compared:
    exact = pair.float32
    return compare(
        "a", "prefill", engine.logprobs, exact.logprobs, pair.working.logprobs, engine.top1, exact.top1, exact.lead, 0.5
    )


def test_reference_against_itself_passes(scores: reference_client.Scores) -> None:
    same = compared(scores.pairs["a"].working, scores.pairs["a"])
    verdicts = {c.name: str(c.verdict) for c in parity([same], [same], [True], LIMITS, [])}
    assert {verdicts["parity.ratio"], verdicts["parity.median_ratio"], verdicts["parity.positions"]} == {"pass"}


def test_other_weights_fail(tmp_path: Path, scores: reference_client.Scores) -> None:
    other = reference_client.score(make_tiny_llama(tmp_path, seed=1), {"a": IDS}, {}, "bfloat16")
    wrong = compared(other.pairs["a"].working, scores.pairs["a"])
    verdicts = {c.name: str(c.verdict) for c in parity([wrong], [wrong], [True], LIMITS, [])}
    assert verdicts["parity.ratio"] == "fail"


def test_prompts_are_rendered_with_the_generation_prompt(model: Path) -> None:
    prompts = (
        Prompt(name="text", text="the capital of france is"),
        Prompt.model_validate({"name": "chat", "messages": [{"role": "user", "content": "hello world"}]}),
    )
    prepared = reference_client.prepare(model, prompts)
    assert prepared.chat_template
    assert prepared.ids["text"]
    without = prepared.without_generation_prompt["chat"]
    assert prepared.ids["chat"][: len(without)] == without
    assert len(prepared.ids["chat"]) > len(without)


def test_missing_template_is_named(tmp_path: Path) -> None:
    root = make_tiny_llama(tmp_path)
    (root / "chat_template.jinja").unlink()
    prompt = Prompt.model_validate({"name": "chat", "messages": [{"role": "user", "content": "hello"}]})
    prepared = reference_client.prepare(root, (prompt,))
    assert not prepared.chat_template
    assert "no chat template" in prepared.faults["chat"]


def test_missing_weight_is_no_reference(tmp_path: Path) -> None:
    root = make_tiny_llama(tmp_path)
    index = json.loads((root / "model.safetensors.index.json").read_text())
    config = json.loads((root / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (root / "config.json").write_text(json.dumps(config))
    assert index["weight_map"]
    with pytest.raises(EvidenceMissing, match=r"missing or misshapen.*model\.layers\.2"):
        reference_client.score(root, {"a": IDS[:8]}, {}, "bfloat16")


def test_unknown_model_type_is_no_reference(tmp_path: Path) -> None:
    root = make_tiny_llama(tmp_path)
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps({**config, "model_type": "nobody-knows-it", "architectures": ["X"]}))
    with pytest.raises(EvidenceMissing, match="nobody-knows-it"):
        reference_client.score(root, {"a": IDS[:8]}, {}, "bfloat16")
