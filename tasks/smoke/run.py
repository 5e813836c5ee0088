"""The smoke of one endpoint: ask the engine, compute the reference on the same tokens, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from day0.artifacts.smoke import ExactParity, SmokeReport
from day0.endpoint import Endpoint
from day0.errors import EvidenceMissing, InputError
from day0.files import digest_of
from day0.verdict import Check, Verdict
from tasks.smoke import reference_client
from tasks.smoke.asking import Observed, Plan, decoded, forced, generate, plan_for, teacher_force
from tasks.smoke.engine import ask
from tasks.smoke.exact import Relaunch, Sequence, exact_pass, no_relaunch
from tasks.smoke.judging import judge
from tasks.smoke.kernels import Counting
from tasks.smoke.limits import FLOAT32
from tasks.smoke.reference_client import Scores
from tasks.smoke.routed import chooses_experts, may_be_rounding, settled
from tasks.smoke.settings import SmokeSettings


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
    plan = plan_for(settings, prepared, max_model_len)
    seen = Observed()

    def rounds(questions: Any) -> None:
        ask(endpoint, settings.request_timeout, settings.concurrency, questions)
        seen.outcomes.raise_if_ended(endpoint)

    counting = Counting(endpoint)
    counting.begin()
    rounds(lambda engine: generate(engine, plan, seen))
    scores = Scores({}, {})
    if seen.answers:
        scores = _reference(model_dir, plan, seen, settings, computed_out)
        rounds(lambda engine: teacher_force(engine, plan, scores, seen))
    counting.end()
    reference = {
        **prepared.library,
        "dtypes": ["float32", settings.working_dtype],
        "weights_computed_out_to": computed_out,
        "model_digest": model_digest or _folder_digest(model_dir),
    }
    judged = judge(plan, prepared, seen, scores, settings, reference, engine_dtype)
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
        return Check(name=FLOAT32, verdict=Verdict.SKIPPED, reason=f"not compared at float32: {why}"), None
    sequences = {
        name: Sequence(forced(name, plan, scores), scores.pairs[name].float32)
        for name in plan.ids
        if name in scores.pairs
    }
    return exact_pass(sequences, relaunch, settings, with_kernels=with_kernels)


def _reference(
    model_dir: Path, plan: Plan, seen: Observed, settings: SmokeSettings, computed_out: str | None
) -> Scores:
    """Score the engine's own answers, and every prompt with the reference's own continuation."""
    sequences = {n: ids for n, ids in plan.ids.items() if not plan.generate[n]}
    sequences |= {
        decoded(name): [*plan.ids[name], *answer.token_ids] for name, answer in seen.answers.items() if answer.token_ids
    }
    continuations = {n: (ids, plan.generate[n]) for n, ids in plan.ids.items() if plan.generate[n]}
    return reference_client.score(model_dir, sequences, continuations, settings.working_dtype, computed_out)


def _folder_digest(folder: Path) -> str:
    """Names and sizes of the folder's files and the config's content: tells releases apart without reading weights."""
    sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir()) if p.is_file()}
    try:
        config = (folder / "config.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceMissing(f"{folder / 'config.json'} cannot be read: {error}") from error
    return digest_of({"sizes": sizes, "config": config})
