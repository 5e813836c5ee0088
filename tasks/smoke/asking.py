"""What the engine is asked: to generate, to render conversations, and to score what the reference went on with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from day0.progress import report
from tasks.smoke.answers import Answer, PromptScores
from tasks.smoke.checks import Templates
from tasks.smoke.engine import Engine, Outcomes
from tasks.smoke.reference_client import Prepared, Scores
from tasks.smoke.settings import Prompt, SmokeSettings


@dataclass
class Observed:
    """What the engine did, by prompt name."""

    outcomes: Outcomes = field(default_factory=Outcomes)
    answers: dict[str, Answer] = field(default_factory=dict)
    streamed: dict[str, Answer] = field(default_factory=dict)
    repeated: dict[str, Answer] = field(default_factory=dict)
    templates: dict[str, Templates] = field(default_factory=dict)
    stopped: tuple[str, Answer] | None = None
    scores: dict[str, PromptScores] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Token ids and numbers of tokens to generate, cut to the engine's context length."""

    prompts: tuple[Prompt, ...]
    ids: dict[str, list[int]]
    generate: dict[str, int]
    clipped: list[str]


def plan_for(settings: SmokeSettings, prepared: Prepared, max_model_len: int | None) -> Plan:
    """Fit each prompt and its continuation into the context; only plain text can be cut."""
    room = (max_model_len or 1 << 62) - 1  # scoring asks for one token more
    ids, generate, clipped = {}, {}, []
    for prompt in settings.prompts:
        if prompt.name not in prepared.ids:
            continue
        given = prepared.ids[prompt.name]
        if prompt.text is not None and len(given) + prompt.generate > room:
            given = given[: max(2, room - prompt.generate)]
            clipped.append(prompt.name)
        ids[prompt.name] = given
        generate[prompt.name] = max(0, min(prompt.generate, room - len(given)))
    return Plan(settings.prompts, ids, generate, clipped)


async def generate(engine: Engine, plan: Plan, seen: Observed) -> None:
    """Everything that is generated, plus how the engine renders conversations."""
    report("asking the engine to generate")

    async def one(prompt: Prompt) -> None:
        name, tokens = prompt.name, plan.generate.get(prompt.name, 0)
        if name not in plan.ids:
            return

        def answer(stream: bool) -> Awaitable[Answer]:
            if prompt.messages is None:
                return engine.complete(plan.ids[name], tokens, stream=stream)
            return engine.chat([m.to_json() for m in prompt.messages], tokens, stream=stream)

        if prompt.messages:
            strings = [m.to_json() for m in prompt.messages]
            parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in strings]
            seen.templates[name] = Templates(
                await seen.outcomes.of(f"{name}/render", engine.render(strings)),
                await seen.outcomes.of(f"{name}/render parts", engine.render(parts)),
            )
        if not tokens:
            return
        _put(seen.answers, name, await seen.outcomes.of(name, answer(False)))
        if prompt.stream:
            _put(seen.streamed, name, await seen.outcomes.of(f"{name}/stream", answer(True)))
            _put(seen.repeated, name, await seen.outcomes.of(f"{name}/repeat", answer(False)))

    await asyncio.gather(*(one(prompt) for prompt in plan.prompts))
    await _stop(engine, plan, seen)


async def _stop(engine: Engine, plan: Plan, seen: Observed) -> None:
    """Ask once more for a completion, to be stopped by a word from the middle of its own earlier text."""
    for prompt in plan.prompts:
        words = seen.answers[prompt.name].text.split() if prompt.name in seen.answers and prompt.text else []
        if len(words) >= 4:
            word = words[len(words) // 2]
            question = engine.complete(plan.ids[prompt.name], plan.generate[prompt.name], stop=word)
            if answer := await seen.outcomes.of(f"{prompt.name}/stop", question):
                seen.stopped = word, answer
            return


async def teacher_force(engine: Engine, plan: Plan, scores: Scores, seen: Observed) -> None:
    report("asking the engine for log-probabilities")

    async def one(name: str) -> None:
        question = engine.score(forced(name, plan, scores))
        _put(seen.scores, name, await seen.outcomes.of(f"{name}/logprobs", question))

    await asyncio.gather(*(one(name) for name in plan.ids))


def forced(name: str, plan: Plan, scores: Scores) -> list[int]:
    """The token ids that are scored: a prompt and the reference's own continuation."""
    return [*plan.ids[name], *scores.continuations.get(name, [])]


def decoded(name: str) -> str:
    """The name of the sequence of a prompt and the engine's own answer."""
    return f"{name}/decoded"


def _put(into: dict[str, Any], name: str, value: object | None) -> None:
    if value is not None:
        into[name] = value
