"""One attempt at one stage: its record, its log, its workspace, and what is published of it."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event

from day0 import deadline, progress
from day0.artifacts.base import Artifact
from day0.errors import Day0Error
from day0.fingerprint import code_digest, versions
from day0.home import home
from day0.ledger import ArtifactRecord, Ledger, Run, StageRun
from day0.store import Store, stats_of
from day0.verdict import Verdict

if TYPE_CHECKING:
    from day0.stage import Stage

_workspace: ContextVar[Callable[[], Path]] = ContextVar("workspace")
_log_file: ContextVar[Path | None] = ContextVar("log_file", default=None)


class StageFailed(Day0Error):
    """The stage did its work and recorded an artifact whose verdict is not good."""

    def __init__(self, stage: str, verdict: Verdict, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.verdict = verdict


@dataclass(frozen=True)
class Resources:
    """What a flow lends its stages, outside their cache keys: a live engine, a listener to progress."""

    values: Mapping[str, Any] = field(default_factory=dict)
    listener: progress.Listener = lambda _: None


class Execution:
    """One attempt at one stage, with its record, its log and its workspace."""

    def __init__(
        self,
        stage: Stage[Any, Any],
        run_id: str,
        inputs: dict[str, str | None],
        settings: dict[str, Any],
        resources: Resources,
    ) -> None:
        self.stage, self.run_id, self.resources = stage, run_id, resources
        self.inputs, self.settings = inputs, settings
        self.store, self.ledger = Store(), Ledger()
        self.key = stage.key(inputs, settings)
        self.folder: Path | None = None

    def digest(self) -> str:
        """Take the recorded artifact or make it; returns its digest.

        Raises:
            StageFailed: the artifact is recorded, and its verdict is not good.
            Day0Error: the stage could not do its work.
        """
        # Asked again here: Prefect goes on without a cache where computing the key failed, and may have lost its own.
        _, record = self.stage.recorded(self.inputs, self.settings)
        if record:
            record_cached(self.ledger, self.run_id, record)
            return record.digest
        return self._make()

    def _make(self) -> str:
        started = time.monotonic()
        row = self._begin()
        try:
            artifact = self._call()
            record = self._keep(artifact, time.monotonic() - started)
        except BaseException as error:
            self._end(row, time.monotonic() - started, error=error)
            raise
        finally:
            if self.folder and self.folder.exists():
                shutil.rmtree(self.folder, ignore_errors=True)
        self._end(row, record.seconds, record=record)
        self._publish(artifact, record)
        if not artifact.verdict.good:
            raise StageFailed(self.stage.name, artifact.verdict, artifact.reason)
        return record.digest

    def _call(self) -> Artifact:
        arguments: dict[str, Any] = {
            name: None if (digest := self.inputs[name]) is None else self.store.get(digest, kind)
            for name, kind in self.stage.inputs.items()
        }
        if self.stage.settings:
            arguments["settings"] = self.stage.settings.model_validate(self.settings)
        arguments |= {name: self.resources.values[name] for name in self.stage.resources}
        tokens = _workspace.set(self._make_workspace), _log_file.set(self.log_path)
        limit = deadline.Deadline(self.stage.name, self.stage.timeout)
        try:
            listening = progress.listening(self.stage.name, self.resources.listener)
            with _LogTo(self.log_path), listening, limit.running():
                artifact: Artifact = self.stage.function(**arguments)
        finally:
            _workspace.reset(tokens[0])
            _log_file.reset(tokens[1])
        return artifact

    def _make_workspace(self) -> Path:
        if self.folder is None:
            self.folder = self.store.workspace()
        return self.folder

    def _keep(self, artifact: Artifact, seconds: float) -> ArtifactRecord:
        """Give the files their place, the artifact its digest, and both their record: in this order, so that a
        kill at any moment leaves nothing that is recorded and not there."""
        tree: Path | None = None
        if self.folder is not None:
            tree = self.store.adopt(self.folder, f"{self.stage.name}-{artifact.digest[:16]}")
        elif artifact.files:
            tree = artifact.tree(Path(os.devnull))
        digest = self.store.put(artifact)
        record = ArtifactRecord(
            key=self.key,
            stage=self.stage.name,
            digest=digest,
            verdict=artifact.verdict.value,
            reason=artifact.reason,
            inputs={name: digest for name, digest in self.inputs.items() if digest},
            settings=self.settings,
            versions=versions(self.stage.packages) | {"code": code_digest(self.stage.folder)[:16]},
            tree=None if tree is None else str(tree),
            stats={} if tree is None else stats_of(tree, artifact.files),
            seconds=seconds,
            superseded=None if artifact.verdict.good else f"its verdict was {artifact.verdict}",
        )
        with self.ledger.session() as session:
            session.add(record)
        return record

    @property
    def log_path(self) -> Path:
        return home() / "logs" / self.run_id / f"{self.stage.name}.log"

    def _begin(self) -> int:
        with self.ledger.session() as session:
            row = StageRun(
                run_id=self.run_id, stage=self.stage.name, state="running", log=str(self.log_path), pid=os.getpid()
            )
            session.add(row)
            session.flush()
            return row.id

    def _end(
        self, row: int, seconds: float, record: ArtifactRecord | None = None, error: BaseException | None = None
    ) -> None:
        with self.ledger.session() as session:
            run = session.get_one(StageRun, row)
            run.seconds = seconds
            if record:
                run.state, run.verdict, run.reason, run.artifact_id = "done", record.verdict, record.reason, record.id
            else:
                note_error(run, error)

    def _publish(self, artifact: Artifact, record: ArtifactRecord) -> None:
        with self.ledger.session() as session:
            run = session.get_one(Run, self.run_id)
        key = slug(f"{run.model or run.source}-{run.target}-{self.stage.name}")
        lines = [
            f"# {self.stage.name}: {record.verdict}",
            record.reason,
            "",
            "| check | verdict | reason |",
            "|---|---|---|",
        ]
        lines += [f"| {check.name} | {check.verdict} | {check.reason} |" for check in artifact.checks]
        create_markdown_artifact(key=key, markdown="\n".join(lines), description=f"artifact {record.digest[:16]}")
        emit_event(
            event=f"day0.stage.{record.verdict}",
            resource={"prefect.resource.id": f"day0.run.{self.run_id}", "prefect.resource.name": run.model},
            payload={"stage": self.stage.name, "reason": record.reason, "artifact": record.digest},
        )


def workspace() -> Path:
    """The folder that the running stage fills: it becomes the artifact's tree when the stage returns."""
    return _workspace.get()()


def record_cached(ledger: Ledger, run_id: str, record: ArtifactRecord) -> None:
    """Note in a run that a stage's artifact was taken from the store."""
    with ledger.session() as session:
        session.add(
            StageRun(
                run_id=run_id,
                stage=record.stage,
                state="done",
                verdict=record.verdict,
                reason=record.reason,
                artifact_id=record.id,
                cached=True,
            )
        )


def note_error(row: StageRun, error: BaseException | None) -> None:
    """Record that a stage could not do its work, and why."""
    row.state, row.verdict, row.reason = "error", Verdict.FAIL, describe(error)
    row.exit_code = error.exit_code if isinstance(error, Day0Error) else 1


def describe(error: BaseException | None) -> str:
    """An error as one sentence: day0's own as they are, others with their type."""
    if isinstance(error, Day0Error):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"


def slug(text: str) -> str:
    """Letters, digits and dashes, as Prefect's artifact keys and file names need."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


class _LogTo:
    """Send what day0's loggers say within this stage's context to its log file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.handler = logging.FileHandler(path, mode="a", encoding="utf-8")
        self.handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self.handler.addFilter(lambda _record: _log_file.get() == path)

    def __enter__(self) -> None:
        logger = logging.getLogger("day0")
        logger.setLevel(logging.INFO)
        logger.addHandler(self.handler)

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        logging.getLogger("day0").removeHandler(self.handler)
        self.handler.close()
