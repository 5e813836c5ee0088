"""What a run came to, read from the ledger: for `adapt`, `rerun`, `status` and `show`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import selectinload

from day0.errors import Day0Error
from day0.ledger import Ledger, Run, StageRun
from day0.store import Store, alive
from day0.verdict import Check, Rung, Verdict, exit_code, follow_up, missing_evidence
from flows.pipeline import ORDER, Outcome, evidence


@dataclass(frozen=True)
class Report:
    """A run's result, as `day0 adapt` gives it."""

    run: str
    release: dict[str, Any]
    target: str
    rung: Rung
    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    recipe: str | None
    follow_up: tuple[str, ...] = ()
    """What did not go as it should and yet failed nothing; `reason` of the stages has it too."""

    @property
    def exit_code(self) -> int:
        """That of the first stage that failed (what it found, or why it could not do its work), else the verdict's."""
        failed = next((o for o in self.outcomes if o.verdict is Verdict.FAIL), None)
        return (failed.exit_code if failed else 0) or exit_code(self.verdict)

    @property
    def next_rung(self) -> str:
        """What keeps the next rung out of reach, in words."""
        rung, lacking = missing_evidence(evidence(list(self.outcomes)))
        return f"next: {rung} ({'; '.join(lacking)})" if rung else "the top"

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "release": self.release,
            "target": self.target,
            "rung": self.rung.value,
            "verdict": self.verdict.value,
            "stages": [outcome.to_json() for outcome in self.outcomes],
            "recipe": self.recipe,
        }


def follow_ups(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """What the artifacts of a run's stages leave to be followed up."""
    store, found = Store(), []
    for outcome in outcomes:
        if outcome.artifact:
            checks = store.read(outcome.artifact)["content"]["checks"]
            found += follow_up(Check.model_validate(check) for check in checks)
    return tuple(dict.fromkeys(found))


def adaptations() -> list[dict[str, Any]]:
    """The newest run of every model on every target, newest first."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for run in _runs():
        newest.setdefault(
            (run.model, run.target),
            {
                "model": run.model,
                "revision": run.revision,
                "target": run.target,
                "rung": run.rung,
                "stages": {row.stage: _verdict(row) for row in _latest(run.stages)},
                "run": run.id,
                "updated": run.updated.isoformat() + "Z",
            },
        )
    return list(newest.values())


def whole_record(run_id: str) -> dict[str, Any]:
    """Everything that is recorded of a run: every stage each time it ran, artifacts inlined.

    Raises:
        InputError: there is no such run.
    """
    run, store = Ledger().run(run_id), Store()
    return {
        "run": run.id,
        "source": run.source,
        "model": run.model,
        "revision": run.revision,
        "target": run.target,
        "request": run.request,
        "verdict": run.verdict,
        "rung": run.rung,
        "error": run.error,
        "recipe": run.recipe,
        "started": run.started.isoformat() + "Z",
        "updated": run.updated.isoformat() + "Z",
        "stages": [_stage_record(row, store) for row in _latest(run.stages)],
        "history": [
            {
                "stage": row.stage,
                "state": _state(row),
                "verdict": row.verdict,
                "reason": row.reason,
                "cached": row.cached,
                "seconds": row.seconds,
                "started": row.started.isoformat() + "Z",
            }
            for row in run.stages
        ],
    }


def _stage_record(row: StageRun, store: Store) -> dict[str, Any]:
    record: dict[str, Any] = {
        "name": row.stage,
        "state": _state(row),
        "verdict": _verdict(row),
        "reason": row.reason,
        "seconds": row.seconds,
        "cached": row.cached,
        "log": row.log,
        "artifact": None,
    }
    if row.artifact is None:
        return record
    made = row.artifact
    try:
        content: Any = store.read(made.digest)["content"]
    except Day0Error as error:
        content = {"error": str(error)}
    return record | {
        "artifact": made.digest,
        "inputs": made.inputs,
        "settings": made.settings,
        "versions": made.versions,
        "tree": made.tree,
        "made": made.created.isoformat() + "Z",
        "content": content,
    }


def _runs() -> list[Run]:
    with Ledger().session() as session:
        query = select(Run).options(selectinload(Run.stages)).order_by(Run.updated.desc())
        return list(session.scalars(query).all())


def _latest(rows: Iterable[StageRun]) -> list[StageRun]:
    latest = {row.stage: row for row in rows}
    return sorted(latest.values(), key=lambda row: ORDER.index(row.stage) if row.stage in ORDER else len(ORDER))


def _state(row: StageRun) -> str:
    if row.state == "running" and not (row.pid and alive(row.pid)):
        return "killed"
    return row.state


def _verdict(row: StageRun) -> str:
    """A stage's verdict; one that is still at work has none yet, and says so."""
    return row.verdict or _state(row)


def interrupted(ledger: Ledger, run_id: str) -> None:
    """Record that what a process which no longer lives left as running was killed."""
    with ledger.session() as session:
        for row in session.scalars(select(StageRun).filter_by(run_id=run_id, state="running")):
            if _state(row) == "killed" or row.pid == os.getpid():
                row.state, row.verdict, row.reason = "error", Verdict.FAIL, "its process was killed"
