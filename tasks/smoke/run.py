"""The smoke of one endpoint: ask the engine, compute the reference on the same tokens, compare."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from day0.artifacts.smoke import ExactParity, SmokeReport
from day0.endpoint import Endpoint
from day0.errors import EvidenceMissing, InputError
from day0.files import digest_of
from day0.progress import report
from day0.verdict import Check, Verdict
from tasks.smoke import checks, reference_client
from tasks.smoke.engine import Answer, Engine, Outcomes, PromptScores, ask
from tasks.smoke.exact import Relaunch, Sequence, exact_pass, no_relaunch
from tasks.smoke.kernels import Counting
from tasks.smoke.parity import Compared, Pooled, compare, distribution, median_ratio, ratio, share, summarise
from tasks.smoke.reference_client import Pair, Prepared, Scores
from tasks.smoke.repetition import Repetition, measure, pieces
from tasks.smoke.routed import chooses_experts, may_be_rounding, settled
from tasks.smoke.settings import Prompt, SmokeSettings


@dataclass
class Observed:
    """What the engine did, by prompt name."""

    outcomes: Outcomes = field(default_factory=Outcomes)
    answers: dict[str, Answer] = field(default_factory=dict)
    streamed: dict[str, Answer] = field(default_factory=dict)
    repeated: dict[str, Answer] = field(default_factory=dict)
    templates: dict[str, checks.Templates] = field(default_factory=dict)
    stopped: tuple[str, Answer] | None = None
    scores: dict[str, PromptScores] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Token ids and numbers of tokens to generate, cut to the engine's context length."""

    prompts: tuple[Prompt, ...]
    ids: dict[str, list[int]]
    generate: dict[str, int]
    clipped: list[str]


def run_smoke(
    endpoint: Endpoint,
    model_dir: Path,
    settings: SmokeSettings,
    *,
    model_digest: str | None = None,
    engine_dtype: str = "unknown",
    max_model_len: int | None = None,
    computed_out: str | None = None,
    relaunch: Relaunch = no_relaunch,
) -> SmokeReport:
    """Compare what `endpoint` serves with the original model folder, then the same at float32 by `relaunch`.

    Args:
        computed_out: the dtype that quantised weights were computed out to, if they were: the reference rounds them so
            too, or its difference at float32 would be that of the weights.

    Raises:
        InputError: `model_dir` is no model folder.
        EvidenceMissing: there can be no reference (the extra is not installed, the model type is unknown).
        EngineDied, Unavailable: the engine ended, or does not answer.
    """
    if not (model_dir / "config.json").is_file():
        raise InputError(f"{model_dir} is no model folder: it has no config.json")
    prepared = reference_client.prepare(model_dir, settings.prompts)
    plan = _plan(settings, prepared, max_model_len)
    seen = Observed()

    def rounds(questions: Any) -> None:
        ask(endpoint, settings.request_timeout, settings.concurrency, questions)
        seen.outcomes.raise_if_ended(endpoint)

    counting = Counting(endpoint)
    counting.begin()
    rounds(lambda engine: _generate(engine, plan, seen))
    scores = Scores({}, {})
    if seen.answers:
        scores = _reference(model_dir, plan, seen, settings, computed_out)
        rounds(lambda engine: _teacher_force(engine, plan, scores, seen))
    counting.end()
    reference = {
        **prepared.library,
        "dtypes": ["float32", settings.working_dtype],
        "weights_computed_out_to": computed_out,
        "model_digest": model_digest or _folder_digest(model_dir),
    }
    judged = _judge(plan, prepared, seen, scores, settings, reference, engine_dtype)
    if engine_dtype == "float32":
        return counting.judged(judged)
    routed = chooses_experts(model_dir)
    hopeless = judged.verdict is Verdict.FAIL and not (routed and may_be_rounding(judged.checks))
    check, exact = _exact(hopeless, plan, scores, settings, relaunch, endpoint.kernel_uses is not None)
    found = settled(judged.checks, check) if routed and not hopeless else judged.checks
    return counting.judged(judged.model_copy(update={"checks": (*found, check), "exact": exact}))


def _exact(
    hopeless: bool, plan: Plan, scores: Scores, settings: SmokeSettings, relaunch: Relaunch, with_kernels: bool
) -> tuple[Check, ExactParity | None]:
    """The pass at float32, on the token ids of the first pass, unless that has failed for good."""
    why = None
    if not settings.exact:
        why = "the suite does not ask for it (exact: false)"
    elif hopeless:
        why = "the model as it is served has failed already"
    if why:
        return Check(name=checks.FLOAT32, verdict=Verdict.SKIPPED, reason=f"not compared at float32: {why}"), None
    sequences = {
        name: Sequence(_forced(name, plan, scores), scores.pairs[name].float32)
        for name in plan.ids
        if name in scores.pairs
    }
    return exact_pass(sequences, relaunch, settings, with_kernels=with_kernels)


def _plan(settings: SmokeSettings, prepared: Prepared, max_model_len: int | None) -> Plan:
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


async def _generate(engine: Engine, plan: Plan, seen: Observed) -> None:
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
            seen.templates[name] = checks.Templates(
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


def _reference(
    model_dir: Path, plan: Plan, seen: Observed, settings: SmokeSettings, computed_out: str | None
) -> Scores:
    """Score the engine's own answers, and every prompt with the reference's own continuation."""
    sequences = {n: ids for n, ids in plan.ids.items() if not plan.generate[n]}
    sequences |= {
        _decoded(name): [*plan.ids[name], *answer.token_ids]
        for name, answer in seen.answers.items()
        if answer.token_ids
    }
    continuations = {n: (ids, plan.generate[n]) for n, ids in plan.ids.items() if plan.generate[n]}
    return reference_client.score(model_dir, sequences, continuations, settings.working_dtype, computed_out)


async def _teacher_force(engine: Engine, plan: Plan, scores: Scores, seen: Observed) -> None:
    report("asking the engine for log-probabilities")

    async def one(name: str) -> None:
        question = engine.score(_forced(name, plan, scores))
        _put(seen.scores, name, await seen.outcomes.of(f"{name}/logprobs", question))

    await asyncio.gather(*(one(name) for name in plan.ids))


def _forced(name: str, plan: Plan, scores: Scores) -> list[int]:
    """The token ids that are scored: a prompt and the reference's own continuation."""
    return [*plan.ids[name], *scores.continuations.get(name, [])]


def _judge(
    plan: Plan,
    prepared: Prepared,
    seen: Observed,
    scores: Scores,
    settings: SmokeSettings,
    reference: dict[str, Any],
    engine_dtype: str,
) -> SmokeReport:
    limits = settings.thresholds
    near_tie = limits.near_tie or 0.0
    prefill = [_prefill(name, found, scores.pairs[name], near_tie) for name, found in seen.scores.items()]
    decode: dict[str, Compared] = {}
    greedy: dict[str, list[bool]] = {}
    for name, answer in seen.answers.items():
        if answer.token_ids and answer.logprobs and len(answer.logprobs) == len(answer.token_ids):
            pair = scores.pairs[_decoded(name)]
            decode[name] = _decode(name, answer, pair, len(plan.ids[name]) - 1, near_tie)
            greedy[name] = _greedy(answer, pair, len(plan.ids[name]) - 1, near_tie)
    loops = _loops(seen, settings)
    choices = [choice for several in greedy.values() for choice in several] if limits.near_tie is not None else []
    chats = {p.name for p in plan.prompts if p.messages}
    stable = {n for n, again in seen.repeated.items() if n in seen.answers and again.text == seen.answers[n].text}
    verdicts: list[Check] = [
        checks.answers(seen.outcomes),
        *checks.parity(prefill, list(decode.values()), choices, limits, plan.clipped, engine_dtype),
        checks.template(
            plan.prompts,
            prepared,
            seen.templates,
            {n: a.prompt_tokens for n, a in seen.answers.items() if n in chats},
            settings.chat_template,
        ),
        checks.agreement("streaming", _both(seen.answers, seen.streamed), stable, limits.near_tie),
        checks.agreement("determinism", _both(seen.answers, seen.repeated), set(), limits.near_tie),
        checks.usage(seen.answers, {n: len(i) for n, i in plan.ids.items() if n not in chats}, plan.generate),
        checks.finish(seen.answers, plan.generate, seen.stopped),
        checks.repetition(
            loops, {n: _explained(decode.get(n), greedy.get(n), settings) for n in loops}, bool(settings.repetition)
        ),
        checks.malformed(seen.answers, plan.prompts, prepared.special_tokens, settings),
    ]
    if missing := seen.outcomes.unsupported:
        name, why = next(iter(sorted(missing.items())))
        verdicts.append(
            Check(name="evidence", verdict=Verdict.INCONCLUSIVE, reason=f"{name}: {why}", measured=dict(missing))
        )
    whole = Pooled.of(prefill)
    return SmokeReport(
        checks=tuple(verdicts),
        reference=reference,
        engine_dtype=engine_dtype,
        prompts=tuple(summarise(c) for c in [*prefill, *decode.values()] if c.engine),
        error=distribution(whole.engine) if whole.engine else None,
        reference_error=distribution(whole.reference) if whole.reference else None,
        top1_agreement=share(whole.agrees),
        ratio=ratio(whole.engine, whole.reference),
        median_ratio=median_ratio(whole.engine, whole.reference),
        generations=tuple(_shown(name, answer, loops.get(name)) for name, answer in seen.answers.items()),
        thresholds=settings.thresholds_json(),
    )


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


def _decoded(name: str) -> str:
    return f"{name}/decoded"


def _put(into: dict[str, Any], name: str, value: object | None) -> None:
    if value is not None:
        into[name] = value


def _both(a: Mapping[str, Answer], b: Mapping[str, Answer]) -> dict[str, tuple[Answer, Answer]]:
    return {name: (a[name], b[name]) for name in a if name in b}


def _folder_digest(folder: Path) -> str:
    """Names and sizes of the folder's files and the config's content: tells releases apart without reading weights."""
    sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    try:
        config = (folder / "config.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceMissing(f"{folder / 'config.json'} cannot be read: {error}") from error
    return digest_of({"sizes": sizes, "config": config})
