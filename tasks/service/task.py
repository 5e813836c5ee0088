"""The service stage."""

from __future__ import annotations

from typing import Any

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
from tasks.service.launch import attention_kinds, check_readable, launch_spec, load_format
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
        attention=attention_kinds(model),
        memory_bytes=plan.chosen.per_device.total * plan.chosen.devices,
        ready_timeout=settings.ready_timeout,
    )
    started = engine.start(spec)
    return Service(
        checks=(_answered(started), *([_fenced(started.security)] if settings.runtime == "docker" else [])),
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


def _fenced(security: dict[str, Any]) -> Check:
    """Whether the container that runs is fenced in as it was asked for, by what the daemon tells of it."""
    wanted = {
        "a read-only root": security["read_only_root"],
        "no new privileges": security["no_new_privileges"] and not security["privileged"],
        "no capabilities": security["cap_drop"] == ["ALL"] and not security["cap_add"],
        "a user that is not root": security["user"].split(":")[0] not in ("", "0", "root"),
        "a memory limit": security["memory_limit"] > 0,
        "read-only mounts": bool(security["mounts"]) and all(mount["read_only"] for mount in security["mounts"]),
        "the loopback only": bool(security["published"])
        and all(address.startswith("127.0.0.1:") for address in security["published"]),
    }
    lacking = [name for name, holds in wanted.items() if not holds]
    return Check(
        name="container_fences",
        verdict=Verdict.FAIL if lacking else Verdict.PASS,
        reason=f"the container runs without {', '.join(lacking)}" if lacking else f"it has {', '.join(wanted)}",
        measured=security,
    )
