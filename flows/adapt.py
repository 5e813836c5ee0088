"""Bring one release up on one target: every stage, in order, each recorded."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any, get_args

from prefect import flow, task

from day0 import deadline, progress
from day0.artifacts.kernels import KernelUsage
from day0.artifacts.recipe import Recipe
from day0.artifacts.service import Runtime
from day0.artifacts.snapshot import Snapshot
from day0.engine_kernels import took_out
from day0.errors import Cancelled, Day0Error, InputError
from day0.execution import describe, slug
from day0.files import digest_of
from day0.ledger import Ledger, Run
from day0.pins import lock_digest
from day0.release import Release, parse_source
from day0.stage import Resources, tree_of
from day0.store import Store
from day0.target import load_target
from day0.verdict import rung, worst
from flows.pipeline import ORDER, Outcome, Pipeline, evidence
from flows.report import Report, follow_ups, interrupted
from flows.view import RunView
from tasks.benchmark.settings import load_settings as benchmark_suite
from tasks.benchmark.task import benchmark
from tasks.download.fetch import pin
from tasks.download.task import download, survey
from tasks.kernels.find import sources_digest
from tasks.kernels.settings import KernelSettings
from tasks.kernels.task import kernels
from tasks.multimodal.settings import MultimodalSettings
from tasks.multimodal.task import multimodal
from tasks.operators.settings import operator_settings
from tasks.operators.task import operators
from tasks.plan.settings import PlanSettings
from tasks.plan.task import plan
from tasks.profile.settings import ProfileSettings
from tasks.profile.task import profile
from tasks.recipe.settings import RecipeSettings
from tasks.recipe.task import recipe
from tasks.reshard.settings import ReshardSettings
from tasks.reshard.task import reshard
from tasks.service.engine import load_engine
from tasks.service.environment import prepare
from tasks.service.registry import reap
from tasks.service.session import EngineSession
from tasks.service.settings import ServiceSettings, served_name
from tasks.service.task import service
from tasks.smoke.settings import load_settings as smoke_suite
from tasks.smoke.task import smoke


class RunFailed(Day0Error):
    """The run ended with a verdict that is not good. Its report tells which stage and why."""

    def __init__(self, report: Report) -> None:
        bad = next((o for o in report.outcomes if o.verdict is report.verdict), None)
        super().__init__(f"{report.run}: {bad.name}: {bad.reason}" if bad else f"{report.run}: {report.verdict}")
        self.report = report


@flow(name="adapt", flow_run_name="{source} on {target}", validate_parameters=False)
def adapt(
    source: str,
    target: str = "cpu",
    engine: str | None = None,
    runtime: Runtime = "process",
    until: str | None = None,
    fresh: bool = False,
    kernel_use: KernelUsage = "gaps",
    run_id: str | None = None,
    refresh_from: str | None = None,
) -> Report:
    """Bring a release up on a target.

    Args:
        source: `hf:ORG/NAME[@REV]`, `dir:PATH` or `ORG/NAME`.
        engine: name in configs/engines/; None takes the target's own.
        until: the last stage to run.
        fresh: make every stage again.
        kernel_use: `gaps`: the engine is given the kernels that the target lacks something without; `accepted`: beside
            them every accepted kernel that it has a place for.
        run_id: a run to continue; None begins one.
        refresh_from: make this stage and those after it again.

    Raises:
        RunFailed: the run ended with a verdict that is not good; everything is recorded.
        InputError: the request makes no sense.
    """
    where = load_target(target)
    engine_name = engine or where.engines[0]
    how = load_engine(engine_name)
    release, pinned = parse_source(source), pin(source)
    if runtime not in where.runtimes:
        raise InputError(f"target {target} has no runtime {runtime!r}; it has: {', '.join(where.runtimes)}")
    for name in filter(None, (until, refresh_from)):
        if name not in ORDER:
            raise InputError(f"there is no stage {name!r}; the stages are: {', '.join(ORDER)}")
    if kernel_use not in get_args(KernelUsage):
        raise InputError(f"kernels are used for {' or '.join(get_args(KernelUsage))}, not {kernel_use!r}")
    exact = f"{release.source}@{pinned.revision}" if pinned.revision else release.source
    request = {
        "source": exact, "target": target, "engine": engine_name, "runtime": runtime, "until": until,
        "kernel_use": kernel_use,
    }  # fmt: skip
    run = _begin(run_id, release, pinned.revision or "", request)
    view = RunView()
    with _noting_errors(run), view, EngineSession(run) as session:
        resources = Resources({"engine": session}, view.on_progress)
        stages = Pipeline(
            run, resources, until=until, refresh_from=ORDER[0] if fresh else refresh_from, on_end=view.on_end
        )
        # What a hub holds is planned from its headers, and split while it arrives. A folder's weights are here already.
        snapshot = stages.submit(download, settings=pinned)
        headers = snapshot if release.path else stages.submit(survey, settings=pinned)
        profiled = stages.submit(profile, headers, settings=ProfileSettings())
        planned = stages.submit(plan, headers, profiled, settings=PlanSettings.model_validate({"target": target}))
        shards = stages.submit(reshard, headers, planned, settings=ReshardSettings())
        called = stages.submit(operators, headers, settings=operator_settings(target, where, graph=True))
        filled = stages.submit(kernels, called, settings=KernelSettings(use=kernel_use, sources=sources_digest()))
        if planned and stages.wants("service"):
            _prepare_engine.submit(engine_name, runtime, resources, wait_for=[planned.future], return_state=False)
        served = stages.submit(
            service,
            shards,
            planned,
            filled,
            after=snapshot,
            settings=ServiceSettings(
                engine=engine_name,
                runtime=runtime,
                lock_digest=lock_digest(how.folder),
                config_digest=digest_of(how.to_json()),
                model_name=served_name(release.name),
            ),
        )
        smoked = stages.submit(smoke, snapshot, served, settings=smoke_suite(), benchmark=None)
        seen = stages.submit(multimodal, snapshot, settings=MultimodalSettings())
        measured = stages.submit(benchmark, snapshot, profiled, planned, served, smoked, settings=benchmark_suite())
        launched, asked, found = stages.artifact(served), stages.artifact(smoked), stages.artifact(measured)
        if launched and asked and found and took_out(launched, asked, found):
            smoked = stages.submit(smoke, snapshot, served, settings=smoke_suite(), benchmark=measured)
        handed_over = stages.submit(
            recipe,
            snapshot,
            profiled,
            planned,
            shards,
            called,
            filled,
            served,
            smoked,
            settings=RecipeSettings(),
            multimodal=seen,
            benchmark=measured,
        )
        outcomes = stages.outcomes()
        report = _end(run, target, outcomes, stages.artifact(snapshot), stages.artifact(handed_over))
    if not report.verdict.good:
        raise RunFailed(report)
    return report


def bring_up(source: str, target: str = "cpu", **options: Any) -> Report:
    """`adapt` as a function: ends on Ctrl-C with everything that it started, and reports also what failed.

    Raises:
        Day0Error: the request makes no sense, or the run was interrupted.
    """
    with _ending_on_signals():
        state = adapt(source, target, return_state=True, **options)
    result = state.result(raise_on_failure=False)
    if isinstance(result, Report):
        return result
    if isinstance(result, RunFailed):
        return result.report
    if isinstance(result, BaseException):
        raise result
    raise Cancelled(f"the run ended in the state {state.name}")


@task(name="prepare-engine")
def _prepare_engine(engine: str, runtime: Runtime, resources: Resources) -> None:
    """Build the engine's environment while the weights are still being split; the service stage waits for it."""
    with progress.listening("engine", resources.listener):
        prepare(engine, runtime)


def _begin(run_id: str | None, release: Release, revision: str, request: dict[str, Any]) -> str:
    """Begin a run, or continue one after cleaning up what a killed process left."""
    ledger = Ledger()
    Store().sweep()
    reap()
    if run_id is not None:
        ledger.run(run_id)
        interrupted(ledger, run_id)
        return run_id
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    base = f"{slug(release.name)}-{slug(request['target'])}-{stamp}"
    with ledger.session() as session:
        run_id = next(
            name for n in range(1, 1000) if session.get(Run, name := base + (f"-{n}" if n > 1 else "")) is None
        )
        session.add(
            Run(
                id=run_id,
                source=release.source,
                target=request["target"],
                request=request,
                model=release.name,
                revision=revision,
            )
        )
    return run_id


@contextmanager
def _noting_errors(run_id: str) -> Iterator[None]:
    """Keep in the run's record why it broke off; its stages say for themselves why they failed."""
    try:
        yield
    except BaseException as error:
        with Ledger().session() as session:
            session.get_one(Run, run_id).error = describe(error) if str(error) else type(error).__name__
        raise


def _end(
    run_id: str, target: str, outcomes: list[Outcome], snapshot: Snapshot | None, handed_over: Recipe | None
) -> Report:
    """Record what the run came to."""
    verdict = worst(outcome.verdict for outcome in outcomes)
    reached = rung(evidence(outcomes))
    recipe_path = str(tree_of(handed_over)) if handed_over else None
    with Ledger().session() as session:
        run = session.get_one(Run, run_id)
        run.verdict, run.rung, run.recipe, run.error = verdict, reached, recipe_path, None
        if snapshot:
            run.revision = snapshot.revision
        release = {
            "source": run.source,
            "revision": run.revision,
            "files": len(snapshot.files) if snapshot else 0,
            "bytes": snapshot.bytes if snapshot else 0,
        }
    return Report(run_id, release, target, reached, verdict, tuple(outcomes), recipe_path, follow_ups(outcomes))


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """On SIGINT or SIGTERM end whatever the stages wait for, then unwind as Ctrl-C does: engines are stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(signum: int, _frame: FrameType | None) -> None:
        deadline.cancel_all(f"interrupted by {signal.Signals(signum).name}")
        raise KeyboardInterrupt

    saved = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)
