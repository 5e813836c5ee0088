"""What tests of whole smokes share: a small suite, a reference that is a table of numbers, faults of a server."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from day0.artifacts.smoke import SmokeReport
from day0.endpoint import Endpoint
from day0.verdict import Verdict
from tasks.smoke import reference_client
from tasks.smoke.reference_client import Pair, Prepared, Scored, Scores
from tasks.smoke.run import run_smoke
from tasks.smoke.settings import SmokeSettings, load_settings
from tests.smoke.server import IDS

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
    use_table(monkeypatch, 0.01)


def use_table(monkeypatch: pytest.MonkeyPatch, noise: float) -> None:
    """A reference that is within `noise` nats of the stub at float32, and whose rounding is 0.008 nats."""

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
        values = [-0.5 + noise * math.sin(at) + shift for at in range(1, len(ids))]
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


def on_choice(act: Callable[[dict[str, Any]], None], only: str = "") -> Callable[[str, Any, Any], Any]:
    """Change the choice of every whole answer, or of answers on one path."""

    def change(path: str, asked: Any, answer: Any) -> Any:
        if isinstance(answer, dict) and "choices" in answer and only in path:
            act(answer["choices"][0])
        return answer

    return change
