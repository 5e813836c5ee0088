"""The service stage."""

from __future__ import annotations

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.service import Service
from day0.artifacts.shards import RankShards
from day0.errors import EvidenceMissing
from day0.home import home
from day0.stage import HOURS, stage, tree_of
from day0.verdict import Check, Verdict
from tasks.service.engine import load_engine
from tasks.service.environment import prepare
from tasks.service.launch import check_readable, launch_spec, load_format
from tasks.service.session import EngineSession, Started
from tasks.service.settings import ServiceSettings


@stage("service", version=1, retries=0, timeout=2 * HOURS)
def service(
    shards: RankShards, plan: ParallelPlan, kernels: KernelBundle, settings: ServiceSettings, engine: EngineSession
) -> Service:
    """Launch the engine on the resharded files and prove that it answers; it is left running for the next stages."""
    if plan.chosen is None:
        raise EvidenceMissing("the plan has no feasible layout, so there is nothing to launch")
    config = load_engine(settings.engine)
    model = tree_of(shards)
    prepared = prepare(settings.engine, settings.runtime)
    if settings.runtime == "docker":
        check_readable(model, own=model.is_relative_to(home()))
    spec = launch_spec(
        model,
        plan.engine_args,
        settings.engine,
        config,
        settings.runtime,
        prepared,
        served_name=settings.model_name,
        memory_bytes=plan.chosen.per_device.total * plan.chosen.devices,
        ready_timeout=settings.ready_timeout,
    )
    started = engine.start(spec)
    return Service(
        checks=(_answered(started),),
        launch=spec,
        ready_seconds=started.ready_seconds,
        first_completion=started.first_completion,
        load_format=load_format(model, config),
        security=started.security,
        max_model_len=plan.context,
    )


def _answered(started: Started) -> Check:
    first = started.first_completion
    return Check(
        name="first_completion",
        verdict=Verdict.PASS,
        reason=f"answered a completion of {first.tokens} tokens {started.ready_seconds:.1f} s after launch",
        measured={"ready_seconds": started.ready_seconds, "tokens": first.tokens, "text": first.text},
    )
