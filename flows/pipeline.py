"""Submitting a run's stages to Prefect, and collecting how each ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from prefect.futures import PrefectFuture
from sqlalchemy import func, select

from day0.artifacts.base import Artifact, Settings
from day0.execution import note_error, record_cached
from day0.ledger import ArtifactRecord, Ledger, StageRun
from day0.stage import Resources, Stage
from day0.store import Store
from day0.verdict import Verdict

A = TypeVar("A", bound=Artifact)

#: Every stage in the order in which a person reads them. `--until` and `--from` mean places in this order.
ORDER = (
    "survey",
    "download",
    "profile",
    "plan",
    "reshard",
    "operators",
    "kernels",
    "service",
    "smoke",
    "multimodal",
    "benchmark",
    "recipe",
)


@dataclass(frozen=True)
class Outcome:
    """How one stage of a run ended."""

    name: str
    verdict: Verdict
    reason: str
    artifact: str | None
    seconds: float
    cached: bool
    exit_code: int = 0

    def to_json(self) -> dict[str, Any]:
        """The stage's entry in `day0 adapt --json`."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "artifact": self.artifact,
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
        }


@dataclass(eq=False)
class Pending(Generic[A]):
    """A stage that was submitted: stands for its artifact when given to another stage."""

    stage: Stage[Any, A]
    future: PrefectFuture[str]
    needs: tuple[Pending[Any], ...]
    outcome: Outcome | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Pipeline:
    """The stages of one run. Submitted stages start as soon as their inputs are there, side by side."""

    def __init__(
        self,
        run_id: str,
        resources: Resources,
        *,
        until: str | None = None,
        refresh_from: str | None = None,
        on_end: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        self.run_id, self.resources, self.on_end = run_id, resources, on_end
        self.last = ORDER.index(until) if until else len(ORDER)
        self.refresh = ORDER.index(refresh_from) if refresh_from else len(ORDER)
        self.pending: list[Pending[Any]] = []
        self.ledger = Ledger()
        with self.ledger.session() as session:
            # What an earlier go at this run recorded says nothing of how a stage ends now.
            self.before = session.scalar(select(func.max(StageRun.id)).filter_by(run_id=run_id)) or 0

    def wants(self, name: str) -> bool:
        """Whether a stage is to run, as far as `--until` goes."""
        return ORDER.index(name) <= self.last

    def submit(
        self,
        stage: Stage[Any, A],
        *needs: Pending[Any] | None,
        settings: Settings | None = None,
        after: Pending[Any] | None = None,
        **optional: Any,
    ) -> Pending[A] | None:
        """Submit a stage on what other stages make, in the order of its parameters; None past `--until`.

        `after` must be good before the stage begins, though it takes nothing from it. `optional` names inputs that
        the stage can do without: they are waited for, and given if they are good or at least recorded. A stage that is
        submitted again stands in the place of what it was.
        """
        place = ORDER.index(stage.name)
        if not self.wants(stage.name) or any(need is None for need in needs):
            return None
        given = [need for need in needs if need is not None]
        required = [name for name in stage.inputs if name not in stage.optional]
        inputs: dict[str, Any] = {name: need.future for name, need in zip(required, given, strict=True)}
        inputs |= {name: self._digest_if_any(optional[name]) for name in stage.inputs if name in stage.optional}
        future = stage.task.submit(
            run_id=self.run_id,
            inputs=inputs,
            settings=settings.to_json() if settings else {},
            resources=self.resources,
            force="it was asked to run again" if place >= self.refresh else None,
            wait_for=[after.future] if after else None,
        )
        pending = Pending(stage, future, (*given, *([after] if after else ())))
        self.pending = [*(other for other in self.pending if other.stage is not stage), pending]
        future.add_done_callback(lambda _: self._on_done(pending))
        return pending

    def artifact(self, pending: Pending[A] | None) -> A | None:
        """Wait for a stage and return its artifact, also one whose verdict is not good; None if there is none."""
        digest = self._digest_if_any(pending)
        if digest is None or pending is None:
            return None
        return Store().get(digest, pending.stage.returns)

    def outcomes(self) -> list[Outcome]:
        """Wait for everything that was submitted; how it ended, in the stages' order."""
        for pending in self.pending:
            pending.future.wait()
        ended = [self._settle(pending) for pending in self.pending]
        return sorted(ended, key=lambda outcome: ORDER.index(outcome.name))

    def _digest_if_any(self, pending: Pending[Any] | None) -> str | None:
        if pending is None:
            return None
        pending.future.wait()
        return self._settle(pending).artifact

    def _on_done(self, pending: Pending[Any]) -> None:
        self._settle(pending)

    def _settle(self, pending: Pending[Any]) -> Outcome:
        with pending.lock:
            if pending.outcome is None:
                pending.outcome = self._outcome(pending)
                self.on_end(pending.outcome)
            return pending.outcome

    def _outcome(self, pending: Pending[Any]) -> Outcome:
        pending.future.wait()  # without it, `state` may be what the server last heard
        name, state = pending.stage.name, pending.future.state
        if state.name == "NotReady":
            return self._not_run(pending)
        if state.name == "Cached":
            digest = state.result()
            with self.ledger.session() as session:
                query = select(ArtifactRecord).filter_by(stage=name, digest=digest).order_by(ArtifactRecord.id.desc())
                record = session.scalars(query).first()
            if record is not None:
                record_cached(self.ledger, self.run_id, record)
        with self.ledger.session() as session:
            query_row = select(StageRun).filter_by(run_id=self.run_id, stage=name).where(StageRun.id > self.before)
            row = session.scalars(query_row.order_by(StageRun.id.desc()).limit(1)).first()
            if row is None or row.state == "running":
                # It failed outside its body, which keeps its own record.
                row = row or StageRun(run_id=self.run_id, stage=name, cached=False, seconds=0.0)
                note_error(row, state.result(raise_on_failure=False))
                session.add(row)
                session.flush()
            digest = row.artifact.digest if row.artifact else None
            verdict = Verdict(row.verdict or Verdict.FAIL)
            return Outcome(name, verdict, row.reason, digest, row.seconds, row.cached, row.exit_code)

    def _not_run(self, pending: Pending[Any]) -> Outcome:
        blocking = next(o for need in pending.needs if not (o := self._settle(need)).verdict.good or not o.artifact)
        cause = blocking.reason if blocking.verdict is Verdict.SKIPPED else f"{blocking.name}: {blocking.verdict}"
        reason = cause if cause.startswith("not run") else f"not run ({cause})"
        with self.ledger.session() as session:
            session.add(
                StageRun(
                    run_id=self.run_id,
                    stage=pending.stage.name,
                    state="not run",
                    verdict=Verdict.SKIPPED,
                    reason=reason,
                )
            )
        return Outcome(pending.stage.name, Verdict.SKIPPED, reason, None, 0.0, False)


def evidence(outcomes: list[Outcome]) -> Mapping[str, Verdict]:
    """The verdicts that rungs are computed from: those of stages that made an artifact."""
    return {outcome.name: outcome.verdict for outcome in outcomes if outcome.artifact}
