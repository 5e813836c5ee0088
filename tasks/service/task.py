"""The service stage."""

from __future__ import annotations

from typing import Any

from day0.artifacts.kernels import KernelBundle
from day0.artifacts.plan import ParallelPlan
from day0.artifacts.service import LaunchSpec, Service
from day0.artifacts.shards import RankShards
from day0.engine_kernels import bearing_kernels, taken_out, with_kernels
from day0.errors import EvidenceMissing
from day0.home import home
from day0.stage import HOURS, stage, tree_of
from day0.verdict import FOLLOW_UP, Check, Verdict
from tasks.service.engine import EngineConfig, load_engine
from tasks.service.environment import prepare
from tasks.service.launch import attention_kinds, check_readable, launch_spec, load_format
from tasks.service.session import EngineSession, Started
from tasks.service.settings import ServiceSettings


@stage("service", version=2, retries=0, timeout=2 * HOURS)
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
    launched, started, kernel_checks = _start(engine, spec, kernels, config)
    return Service(
        checks=(
            _answered(started),
            *([_fenced(started.security)] if settings.runtime == "docker" else []),
            *kernel_checks,
        ),
        launch=launched,
        ready_seconds=started.ready_seconds,
        first_completion=started.first_completion,
        load_format=load_format(model, config),
        security=started.security,
        max_model_len=plan.context,
    )


def _start(
    engine: EngineSession, plain: LaunchSpec, bundle: KernelBundle, config: EngineConfig
) -> tuple[LaunchSpec, Started, list[Check]]:
    """Start the engine with the kernels that it is given, without those that it ends in."""
    if bundle.plugin is None:
        return plain, engine.start(plain), []
    names = ", ".join(kernel.name for kernel in bundle.plugin.kernels)
    if not config.kernel_plugin:
        why = f"engine {plain.engine} takes no plugins (kernel_plugin in its config), so that {names} are not used"
        return plain, engine.start(plain), [_without_kernels(why)]
    folder = tree_of(bundle)
    if plain.runtime == "docker":
        check_readable(folder, own=folder.is_relative_to(home()))
    spec = with_kernels(plain, bundle.plugin.kernels, folder)
    started, launched, ends = bearing_kernels(spec, engine.last_words, engine.start)
    return launched, started, taken_out(launched, ends)


def _without_kernels(why: str) -> Check:
    reason = f"started without kernels, to follow up: {why}"
    return Check(name="kernels", verdict=Verdict.PASS, reason=reason, measured={FOLLOW_UP: [why]})


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
