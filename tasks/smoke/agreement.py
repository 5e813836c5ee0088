"""Whether two greedy answers to the same question are the same."""

from __future__ import annotations

from collections.abc import Mapping

from day0.verdict import Check, Verdict
from tasks.smoke.answers import Answer

PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


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
