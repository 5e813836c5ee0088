"""The checks of smoke, each from evidence to one `Check`. Absent evidence or threshold: inconclusive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from day0.artifacts.smoke import Distribution
from day0.verdict import Check, Verdict
from tasks.smoke import content
from tasks.smoke.engine import Answer, Outcomes
from tasks.smoke.parity import Compared, Pooled, distribution, median_ratio, ratio, share, summarise
from tasks.smoke.reference_client import Prepared
from tasks.smoke.repetition import Repetition
from tasks.smoke.settings import Prompt, SmokeSettings, Thresholds

#: The check of an engine that computes in float32.
FLOAT32 = "parity.float32_mean_error"
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


def parity(
    prefill: Sequence[Compared],
    decode: Sequence[Compared],
    greedy: Sequence[bool],
    limits: Thresholds,
    clipped: list[str],
    engine_dtype: str = "unknown",
) -> list[Check]:
    """Engine against reference: on given ids (prefill), and on the engine's own greedy tokens (decode).

    An engine that computes in float32 has no rounding that could hide a fault, and is held to a limit of its own.
    """
    whole, generated = Pooled.of(prefill), Pooled.of(decode)
    spread = distribution(whole.engine) if whole.engine else None
    own = distribution(whole.reference) if whole.reference else None
    by_prompt = {c.prompt: summarise(c).ratio for c in prefill}
    known = {name: value for name, value in by_prompt.items() if value is not None}
    worst = max(known, key=known.__getitem__, default=None)
    count = float(len(whole.engine)) if prefill else None
    worst_error = {c.prompt: max(c.engine) for c in prefill if c.engine}
    return [
        *([float32(spread, limits, worst_error)] if engine_dtype == "float32" else []),
        _limit("positions", count, "min", limits.min_positions, "compared positions", {"clipped": clipped}),
        _limit("ratio", ratio(whole.engine, whole.reference), "max", limits.ratio, "error ratio (means)"),
        _limit("median_ratio", median_ratio(whole.engine, whole.reference), "max", limits.median_ratio,
               "error ratio (medians)"),
        _limit(
            "prompt_ratio",
            known[worst] if worst is not None else None,
            "max",
            limits.prompt_ratio,
            f"worst error ratio of a prompt ({worst})",
            {"by_prompt": by_prompt},
        ),
        _limit("mean_error", spread.mean if spread else None, "max", limits.mean_error, "mean error in nats",
               {"reference": own.mean if own else None}),
        _limit("p99_error", spread.p99 if spread else None, "max", limits.p99_error, "99th percentile error in nats",
               {"reference": own.p99 if own else None}),
        _limit("top1_agreement", share(whole.agrees), "min", limits.top1_agreement, "top-1 agreement beyond near ties",
               {"positions": len(whole.agrees), "near_tie": limits.near_tie}),
        _limit("decode_ratio", ratio(generated.engine, generated.reference), "max", limits.decode_ratio,
               "error ratio on generated tokens", {"positions": len(generated.engine)}),
        _limit("greedy_agreement", share(greedy), "min", limits.greedy_agreement,
               "greedy tokens that the reference would choose too", {"positions": len(greedy)}),
    ]  # fmt: skip


def float32(spread: Distribution | None, limits: Thresholds, worst: Mapping[str, float]) -> Check:
    """The mean error where engine and reference both compute in float32; `worst` is the largest by prompt."""
    what = "mean error in nats, both at float32"
    mean = spread.mean if spread else None
    return _limit(
        FLOAT32.removeprefix("parity."),
        mean,
        "max",
        limits.float32_mean_error,
        what,
        {"p99": spread.p99, "max": spread.max, "positions": spread.count, "worst": dict(worst)} if spread else None,
    )


def _limit(
    name: str,
    value: float | None,
    side: Literal["max", "min"],
    threshold: float | None,
    what: str,
    more: dict[str, Any] | None = None,
) -> Check:
    """One number against one threshold."""
    measured = {"value": value, "threshold": threshold, **(more or {})}
    name = f"parity.{name}"
    if value is None:
        return Check(name=name, verdict=INCONCLUSIVE, reason=f"{what}: could not be measured", measured=measured)
    if threshold is None:
        reason = f"{what}: {value:.4g}, but no threshold is configured"
        return Check(name=name, verdict=INCONCLUSIVE, reason=reason, measured=measured)
    good = value <= threshold if side == "max" else value >= threshold
    relation = {"max": ("at most", "more than"), "min": ("at least", "less than")}[side][not good]
    reason = f"{what}: {value:.4g}, {relation} {threshold:g}"
    return Check(name=name, verdict=PASS if good else FAIL, reason=reason, measured=measured)


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


def agreement(name: str, pairs: Mapping[str, tuple[Answer, Answer]], stable: set[str], near_tie: float | None) -> Check:
    """Two greedy answers to the same question are the same, up to a near tie between two tokens.

    `stable` names prompts whose answer did not change when asked again: there a difference in text needs no
    log-probabilities to be a fault.
    """
    if not pairs:
        return Check(name=name, verdict=INCONCLUSIVE, reason="there are no two answers to compare")
    notes = {prompt: _compare(a, b, near_tie, prompt in stable) for prompt, (a, b) in pairs.items()}
    measured = {prompt: note for prompt, (_, note) in notes.items()}
    for verdict in (FAIL, INCONCLUSIVE):
        if bad := [f"{prompt}: {note}" for prompt, (found, note) in notes.items() if found is verdict]:
            return Check(name=name, verdict=verdict, reason="; ".join(bad), measured=measured)
    ties = sum(note != "identical" for note in measured.values())
    reason = f"{len(pairs)} pairs agree" + (f", {ties} of them up to a near tie" if ties else "")
    return Check(name=name, verdict=PASS, reason=reason, measured=measured)


def _compare(a: Answer, b: Answer, near_tie: float | None, stable: bool) -> tuple[Verdict, str]:
    if a.prompt_tokens != b.prompt_tokens:
        return FAIL, f"usage says {a.prompt_tokens} prompt tokens once and {b.prompt_tokens} the other time"
    if a.token_ids is None or b.token_ids is None:
        if (a.text, a.finish_reason) == (b.text, b.finish_reason):
            return PASS, "identical"
        verdict = FAIL if stable else INCONCLUSIVE
        return verdict, "the texts differ, and the engine tells no token ids that would show a near tie"
    if a.token_ids == b.token_ids:
        for what in ("text", "finish_reason", "completion_tokens"):
            if getattr(a, what) != getattr(b, what):
                return FAIL, f"the tokens are the same, but {what} differs"
        return PASS, "identical"
    ids = zip(a.token_ids, b.token_ids, strict=False)
    at = next((i for i, (x, y) in enumerate(ids) if x != y), None)
    if at is None:
        return FAIL, f"one answer goes on where the other ends ({len(a.token_ids)} and {len(b.token_ids)} tokens)"
    gap = _gap(a, b, at)
    if gap is None:
        # neither run lists the other's token among its most likely: no near tie
        if a.alternatives and b.alternatives:
            return FAIL, f"they differ from token {at} on, and neither run had the other's token among its candidates"
        return INCONCLUSIVE, f"they differ from token {at} on, and there are no log-probabilities to show a near tie"
    if near_tie is None:
        return INCONCLUSIVE, f"they differ from token {at} on by {gap:.3f} nats, but no near_tie is configured"
    if gap > near_tie:
        return FAIL, f"they differ from token {at} on, where the two tokens lie {gap:.3f} nats apart"
    return PASS, f"they part at token {at}, a near tie of {gap:.3f} nats"


def _gap(a: Answer, b: Answer, at: int) -> float | None:
    """How far apart the two tokens were at the first difference, by the run that saw them closest."""
    if not (a.alternatives and b.alternatives and a.keys and b.keys):
        return None
    if at >= min(len(a.alternatives), len(b.alternatives)):
        return None
    mine, theirs = a.keys[at], b.keys[at]
    seen = [run.alternatives[at] for run in (a, b) if run.alternatives]
    return min((abs(c[mine] - c[theirs]) for c in seen if mine in c and theirs in c), default=None)


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
