"""From what was asked and what the reference makes of it to the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from day0.artifacts.smoke import SmokeReport
from day0.verdict import Check
from tasks.smoke import checks
from tasks.smoke.agreement import agreement
from tasks.smoke.answers import Answer, PromptScores
from tasks.smoke.asking import Observed, Plan, decoded
from tasks.smoke.limits import parity
from tasks.smoke.parity import Compared, Pooled, compare, distribution, median_ratio, ratio, share, summarise
from tasks.smoke.reference_client import Pair, Prepared, Scores
from tasks.smoke.repetition import Repetition, measure, pieces
from tasks.smoke.settings import SmokeSettings


@dataclass
class Comparisons:
    """Engine against reference: on given ids by prompt, and by name on what the engine generated."""

    prefill: list[Compared]
    decode: dict[str, Compared] = field(default_factory=dict)
    greedy: dict[str, list[bool]] = field(default_factory=dict)
    """Of each generated token, whether the reference would have chosen it too."""


def judge(
    plan: Plan,
    prepared: Prepared,
    seen: Observed,
    scores: Scores,
    settings: SmokeSettings,
    reference: dict[str, Any],
    engine_dtype: str,
) -> SmokeReport:
    """The report of what was asked, without the pass at float32."""
    compared = _comparisons(plan, seen, scores, settings.thresholds.near_tie or 0.0)
    loops = _loops(seen, settings)
    whole = Pooled.of(compared.prefill)
    return SmokeReport(
        checks=tuple(_checks(plan, prepared, seen, compared, loops, settings, engine_dtype)),
        reference=reference,
        engine_dtype=engine_dtype,
        prompts=tuple(summarise(c) for c in [*compared.prefill, *compared.decode.values()] if c.engine),
        error=distribution(whole.engine) if whole.engine else None,
        reference_error=distribution(whole.reference) if whole.reference else None,
        top1_agreement=share(whole.agrees),
        ratio=ratio(whole.engine, whole.reference),
        median_ratio=median_ratio(whole.engine, whole.reference),
        generations=tuple(_shown(name, answer, loops.get(name)) for name, answer in seen.answers.items()),
        thresholds=settings.thresholds_json(),
    )


def _checks(
    plan: Plan,
    prepared: Prepared,
    seen: Observed,
    compared: Comparisons,
    loops: Mapping[str, Repetition],
    settings: SmokeSettings,
    engine_dtype: str,
) -> list[Check]:
    limits = settings.thresholds
    choices = [choice for several in compared.greedy.values() for choice in several]
    chats = {p.name for p in plan.prompts if p.messages}
    stable = {n for n, again in seen.repeated.items() if n in seen.answers and again.text == seen.answers[n].text}
    explained = {n: _explained(compared.decode.get(n), compared.greedy.get(n), settings) for n in loops}
    return [
        checks.answers(seen.outcomes),
        *parity(
            compared.prefill,
            list(compared.decode.values()),
            choices if limits.near_tie is not None else [],
            limits,
            plan.clipped,
            engine_dtype,
        ),
        checks.template(
            plan.prompts,
            prepared,
            seen.templates,
            {n: a.prompt_tokens for n, a in seen.answers.items() if n in chats},
            settings.chat_template,
        ),
        agreement("streaming", _both(seen.answers, seen.streamed), stable, limits.near_tie),
        agreement("determinism", _both(seen.answers, seen.repeated), set(), limits.near_tie),
        checks.usage(seen.answers, {n: len(i) for n, i in plan.ids.items() if n not in chats}, plan.generate),
        checks.finish(seen.answers, plan.generate, seen.stopped),
        checks.repetition(loops, explained, bool(settings.repetition)),
        checks.malformed(seen.answers, plan.prompts, prepared.special_tokens, settings),
        *checks.evidence(seen.outcomes),
    ]


def _comparisons(plan: Plan, seen: Observed, scores: Scores, near_tie: float) -> Comparisons:
    found = Comparisons([_prefill(name, given, scores.pairs[name], near_tie) for name, given in seen.scores.items()])
    for name, answer in seen.answers.items():
        if answer.token_ids and answer.logprobs and len(answer.logprobs) == len(answer.token_ids):
            pair = scores.pairs[decoded(name)]
            found.decode[name] = _decode(name, answer, pair, len(plan.ids[name]) - 1, near_tie)
            found.greedy[name] = _greedy(answer, pair, len(plan.ids[name]) - 1, near_tie)
    return found


def _prefill(name: str, found: PromptScores, pair: Pair, near_tie: float) -> Compared:
    exact, working = pair.float32, pair.working
    return compare(
        name, "prefill", found.logprobs, exact.logprobs, working.logprobs, found.top1, exact.top1, exact.lead, near_tie
    )


def _decode(name: str, answer: Answer, pair: Pair, start: int, near_tie: float) -> Compared:
    assert answer.token_ids is not None
    assert answer.logprobs is not None
    exact, working = pair.float32, pair.working
    return compare(
        name,
        "decode",
        answer.logprobs,
        exact.logprobs[start:],
        working.logprobs[start:],
        answer.token_ids,
        exact.top1[start:],
        exact.lead[start:],
        near_tie,
    )


def _greedy(answer: Answer, pair: Pair, start: int, near_tie: float) -> list[bool]:
    """Whether each token that the engine chose is, for the float32 reference, the most likely one or nearly so."""
    exact = pair.float32
    behind = zip(exact.top1_logprobs[start:], exact.logprobs[start:], strict=True)
    return [best - chosen <= near_tie for best, chosen in behind]


def _loops(seen: Observed, settings: SmokeSettings) -> dict[str, Repetition]:
    if settings.repetition is None:
        return {}
    return {
        name: measure(
            answer.token_ids if answer.token_ids is not None else pieces(answer.text),
            answer.finish_reason,
            settings.repetition,
        )
        for name, answer in seen.answers.items()
    }


def _explained(compared: Compared | None, greedy: list[bool] | None, settings: SmokeSettings) -> bool:
    """Whether the reference, given the engine's tokens, finds each as likely, and would choose them too."""
    limits = settings.thresholds
    if not compared or not greedy or limits.mean_error is None or limits.greedy_agreement is None:
        return False
    agreed, mean = share(greedy), distribution(compared.engine).mean
    return agreed is not None and agreed >= limits.greedy_agreement and mean <= limits.mean_error


def _shown(name: str, answer: Answer, repetition: Repetition | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "prompt": name,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "tokens": answer.completion_tokens,
    }
    if repetition:
        shown["repetition"] = {
            "period": repetition.period,
            "repeats": repetition.repeats,
            "distinct": repetition.distinct,
            "loop": repetition.loop,
        }
    return shown


def _both(a: Mapping[str, Answer], b: Mapping[str, Answer]) -> dict[str, tuple[Answer, Answer]]:
    return {name: (a[name], b[name]) for name in a if name in b}
