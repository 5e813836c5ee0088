"""The checks of smoke, each from evidence to one `Check`. Absent evidence or threshold: inconclusive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from day0.verdict import Check, Verdict
from tasks.smoke import content
from tasks.smoke.answers import Answer
from tasks.smoke.engine import Outcomes
from tasks.smoke.reference_client import Prepared
from tasks.smoke.repetition import Repetition
from tasks.smoke.settings import Prompt, SmokeSettings

PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class Templates:
    """What the engine's template gave for one conversation; None where it has no route that tells."""

    as_string: list[int] | None
    as_parts: list[int] | None


def answers(outcomes: Outcomes) -> Check:
    """As many sound answers as questions."""
    lost = len(outcomes.faults)
    measured = {"asked": outcomes.asked, "lost": lost, "faults": dict(sorted(outcomes.faults.items()))}
    if not outcomes.asked:
        return Check(name="answers", verdict=FAIL, reason="nothing was asked", measured=measured)
    if lost:
        name, why = next(iter(sorted(outcomes.faults.items())))
        reason = f"{lost} of {outcomes.asked} answers lost or malformed; {name}: {why}"
        return Check(name="answers", verdict=FAIL, reason=reason, measured=measured)
    return Check(name="answers", verdict=PASS, reason=f"all {outcomes.asked} questions answered", measured=measured)


def evidence(outcomes: Outcomes) -> list[Check]:
    """What the server does not give at all; no check where it gives all."""
    missing = outcomes.unsupported
    if not missing:
        return []
    name, why = next(iter(sorted(missing.items())))
    return [Check(name="evidence", verdict=INCONCLUSIVE, reason=f"{name}: {why}", measured=dict(missing))]


def template(
    prompts: Sequence[Prompt],
    prepared: Prepared,
    engine: Mapping[str, Templates],
    counts: Mapping[str, int],
    policy: str,
) -> Check:
    """The engine renders conversations as the model's own tokenizer does.

    `counts` are usage.prompt_tokens of chat answers: the only evidence where the engine has no /tokenize.
    """
    chats = [p for p in prompts if p.messages]
    if not prepared.chat_template and policy == "optional":
        reason = "the model has no chat template, and the suite says it needs none"
        return Check(name="template", verdict=Verdict.SKIPPED, reason=reason)
    if not chats:
        return Check(name="template", verdict=INCONCLUSIVE, reason="the suite has no conversation to render")
    faults, told, measured = [], 0, {}
    for prompt in chats:
        if prompt.name in prepared.faults:
            faults.append(f"{prompt.name}: {prepared.faults[prompt.name]}")
            continue
        ids = prepared.ids[prompt.name]
        theirs, count = engine.get(prompt.name, Templates(None, None)), counts.get(prompt.name)
        told += theirs.as_string is not None or count is not None
        measured[prompt.name] = {
            "reference": len(ids),
            "without_generation_prompt": len(prepared.without_generation_prompt[prompt.name]),
            "engine": len(theirs.as_string) if theirs.as_string is not None else None,
            "engine_parts": len(theirs.as_parts) if theirs.as_parts is not None else None,
            "usage": count,
        }
        if theirs.as_string is not None and theirs.as_string != ids:
            faults.append(f"{prompt.name}: {_difference(theirs.as_string, ids, prepared, prompt.name)}")
        elif count is not None and count != len(ids):
            faults.append(f"{prompt.name}: usage says {count} prompt tokens, the tokenizer's template gives {len(ids)}")
        elif theirs.as_parts is not None and theirs.as_parts != ids:
            faults.append(f"{prompt.name}: content given as a list of text parts renders differently from a string")
    if faults:
        return Check(name="template", verdict=FAIL, reason="; ".join(faults), measured=measured)
    if told < len(chats):
        reason = "the engine does not tell how it renders every conversation"
        return Check(name="template", verdict=INCONCLUSIVE, reason=reason, measured=measured)
    reason = f"{len(chats)} conversations render as the model's tokenizer renders them"
    return Check(name="template", verdict=PASS, reason=reason, measured=measured)


def _difference(engine: list[int], ids: list[int], prepared: Prepared, name: str) -> str:
    if engine == prepared.without_generation_prompt.get(name):
        return "the engine leaves out the generation prompt"
    at = next((i for i, (a, b) in enumerate(zip(engine, ids, strict=False)) if a != b), min(len(engine), len(ids)))
    return f"the engine renders {len(engine)} tokens, the tokenizer {len(ids)}; they differ from token {at} on"


def usage(found: Mapping[str, Answer], sent: Mapping[str, int], asked: Mapping[str, int]) -> Check:
    """Counts are true: prompt tokens as sent, completion tokens as received, never more than asked for."""
    if not found:
        return Check(name="usage", verdict=INCONCLUSIVE, reason="there is no answer to count")
    faults = []
    for name, answer in found.items():
        if name in sent and answer.prompt_tokens != sent[name]:
            faults.append(f"{name}: {sent[name]} prompt tokens were sent, usage says {answer.prompt_tokens}")
        if answer.token_ids is not None and answer.completion_tokens != len(answer.token_ids):
            faults.append(f"{name}: {len(answer.token_ids)} tokens came, usage says {answer.completion_tokens}")
        if answer.completion_tokens > asked[name]:
            faults.append(f"{name}: {answer.completion_tokens} tokens came, {asked[name]} were asked for")
    if faults:
        return Check(name="usage", verdict=FAIL, reason="; ".join(faults))
    return Check(name="usage", verdict=PASS, reason=f"token counts of {len(found)} answers are true")


def finish(found: Mapping[str, Answer], asked: Mapping[str, int], stopped: tuple[str, Answer] | None) -> Check:
    """`length` exactly when the limit was reached; and a stop string ends an answer before itself."""
    if not found:
        return Check(name="finish_reason", verdict=INCONCLUSIVE, reason="there is no answer to judge")
    faults = []
    for name, answer in found.items():
        if answer.finish_reason not in ("stop", "length"):
            faults.append(f"{name}: finish_reason {answer.finish_reason!r}")
        elif answer.finish_reason == "length" and answer.completion_tokens != asked[name]:
            faults.append(f"{name}: cut off by length after {answer.completion_tokens} of {asked[name]} tokens")
    measured: dict[str, Any] = {"reasons": {name: answer.finish_reason for name, answer in found.items()}}
    if stopped:
        text, answer = stopped
        measured["stop"] = {"string": text, "finish_reason": answer.finish_reason}
        if text in answer.text:
            faults.append(f"the stop string {text!r} is in the answer")
    if faults:
        return Check(name="finish_reason", verdict=FAIL, reason="; ".join(faults), measured=measured)
    return Check(
        name="finish_reason", verdict=PASS, reason="every answer ended for the reason it gives", measured=measured
    )


def repetition(measured: Mapping[str, Repetition], explained: Mapping[str, bool], configured: bool) -> Check:
    """No answer loops, unless the reference, given the same tokens, would have gone on alike."""
    if not configured:
        return Check(name="repetition", verdict=INCONCLUSIVE, reason="no repetition limits are configured")
    if not measured:
        return Check(name="repetition", verdict=INCONCLUSIVE, reason="there is no answer to judge")
    loops = {name: m.reason for name, m in measured.items() if m.loop}
    faults = [f"{name}: {why}" for name, why in loops.items() if not explained.get(name)]
    if faults:
        return Check(name="repetition", verdict=FAIL, reason="; ".join(faults), measured={"loops": loops})
    reason = f"none of {len(measured)} answers loops"
    if loops:
        reason = f"{', '.join(loops)}: loops, and so does the reference given the same tokens: it is the model's own"
    return Check(name="repetition", verdict=PASS, reason=reason, measured={"loops": loops})


def malformed(
    found: Mapping[str, Answer], prompts: Sequence[Prompt], special: list[str], settings: SmokeSettings
) -> Check:
    """Texts are readable: not empty, decodable, no control tokens, no salad of scripts."""
    if settings.leaks is None:
        return Check(name="malformed", verdict=INCONCLUSIVE, reason="no leaks are configured")
    if not found:
        return Check(name="malformed", verdict=INCONCLUSIVE, reason="there is no answer to judge")
    by_name = {p.name: p for p in prompts}
    faults = []
    for name, answer in found.items():
        prompt = by_name[name]
        asked = prompt.text or "\n".join(m.content for m in prompt.messages or ())
        faults += [
            f"{name}: {fault}"
            for fault in content.faults(
                answer.text,
                answer.finish_reason,
                special_tokens=special,
                leaks=settings.leaks,
                asked=asked,
                multilingual=prompt.multilingual,
            )
        ]
    if faults:
        return Check(name="malformed", verdict=FAIL, reason="; ".join(faults))
    return Check(name="malformed", verdict=PASS, reason=f"{len(found)} texts are readable")
