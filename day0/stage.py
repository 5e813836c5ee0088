"""The stage contract: a function from artifacts and settings to one artifact, and everything around it.

    @stage("reshard", version=3, retries=2, timeout=6 * HOURS)
    def reshard(snapshot: Snapshot, plan: ParallelPlan, settings: ReshardSettings) -> RankShards: ...

The decorator makes a Prefect task of it. The task's cache key is derived from the stage's name, version and code,
the digests of its input artifacts, its settings, and the versions of the packages that it names. Prefect keeps the
artifact's digest under that key; the artifact itself is in the store, its lineage in the ledger. A recorded artifact
whose files are no longer what they were is superseded: the key's generation goes up, and the stage runs again.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import shutil
import time
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from prefect import Task, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.events import emit_event
from prefect.tasks import exponential_backoff
from sqlalchemy import select

from day0 import deadline, progress
from day0.artifacts.base import Artifact, Settings
from day0.endpoint import EngineDied
from day0.errors import Day0Error, Unavailable
from day0.files import digest_of
from day0.fingerprint import code_digest, versions
from day0.home import home
from day0.ledger import ArtifactRecord, Ledger, Run, StageRun
from day0.store import Store, changed_file, stats_of
from day0.verdict import Verdict

MINUTES = 60.0
HOURS = 3600.0

P = ParamSpec("P")
A = TypeVar("A", bound=Artifact)

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


class Stage(Generic[P, A]):
    """A stage: its plain function (call it as such), its Prefect task, and its cache key."""

    def __init__(
        self,
        function: Callable[P, A],
        name: str,
        version: int,
        retries: int,
        timeout: float,
        packages: tuple[str, ...],
    ) -> None:
        self.function, self.name, self.version = function, name, version
        self.timeout, self.packages = timeout, packages
        self.folder = Path(inspect.getfile(function)).resolve().parent
        self._read_signature(function)
        self.task: Task[Any, str] = task(
            name=name,
            description=inspect.getdoc(function),
            task_run_name="{run_id}/" + name,
            retries=retries,
            retry_delay_seconds=exponential_backoff(2),
            retry_jitter_factor=0.5,
            retry_condition_fn=_worth_a_retry,
            persist_result=True,
            result_serializer="json",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, given: self._fresh_key(given)),
        )(self._body())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> A:
        return self.function(*args, **kwargs)

    def key(self, inputs: Mapping[str, str | None], settings: Mapping[str, Any]) -> str:
        """The cache key, without its generation."""
        content = {
            "stage": self.name,
            "version": self.version,
            "code": code_digest(self.folder),
            "packages": versions(self.packages),
            "inputs": dict(inputs),
            "settings": dict(settings),
        }
        return f"day0/{self.name}/{digest_of(content)}"

    def _read_signature(self, function: Callable[P, A]) -> None:
        self.inputs: dict[str, type[Artifact]] = {}
        self.optional: set[str] = set()
        self.resources: list[str] = []
        self.settings: type[Settings] | None = None
        hints = typing.get_type_hints(function)
        self.returns: type[A] = hints["return"]
        for parameter in inspect.signature(function).parameters:
            kinds = _alternatives(hints[parameter])
            kind = next((k for k in kinds if isinstance(k, type) and issubclass(k, Artifact | Settings)), None)
            if kind is None:
                self.resources.append(parameter)
            elif issubclass(kind, Artifact):
                self.inputs[parameter] = kind
                if type(None) in kinds:
                    self.optional.add(parameter)
            else:
                self.settings = kind

    def _fresh_key(self, given: Mapping[str, Any]) -> str:
        """The key with its generation, after a look at whether what it stands for is still whole and wanted."""
        key = self.key(given["inputs"], given["settings"])
        store, ledger = Store(), Ledger()
        with ledger.session() as session:
            while (record := ledger.usable(session, key)) and (why := given["force"] or _damage(store, record, self)):
                record.superseded = why
                session.flush()
                logging.getLogger(f"day0.{self.name}").warning("made again: %s", why)
            return f"{key}/{ledger.generation(session, key)}"

    def _body(self) -> Callable[..., str]:
        def body(
            run_id: str,
            inputs: dict[str, str | None],
            settings: dict[str, Any],
            resources: Resources,
            force: str | None,
        ) -> str:
            """`force` says why what is recorded must not be taken; None lets it be taken."""
            return _Execution(self, run_id, inputs, settings, resources).digest()

        return body


def stage(
    name: str,
    *,
    version: int,
    retries: int = 0,
    timeout: float = 1 * HOURS,
    packages: tuple[str, ...] = (),
) -> Callable[[Callable[P, A]], Stage[P, A]]:
    """Make a stage of a function whose parameters are artifacts, one `Settings`, and resources.

    Args:
        version: raise it when the stage's meaning changes; changes of its code are noticed anyway.
        retries: further attempts after an `Unavailable`; no other error is worth one.
        timeout: seconds for one attempt; what the stage waits for is really ended then.
        packages: distributions whose versions belong to the cache key.
    """
    return lambda function: Stage(function, name, version, retries, timeout, packages)


def workspace() -> Path:
    """The folder that the running stage fills: it becomes the artifact's tree when the stage returns."""
    return _workspace.get()()


def tree_of(artifact: Artifact) -> Path:
    """The folder that an artifact's `files` lie in."""
    ledger = Ledger()
    with ledger.session() as session:
        query = select(ArtifactRecord).filter_by(digest=artifact.digest).order_by(ArtifactRecord.id.desc())
        record = session.scalars(query.limit(1)).first()
    return artifact.tree(Path(record.tree if record and record.tree else os.devnull))


class _Execution:
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
        with self.ledger.session() as session:
            record = self.ledger.usable(session, self.key)
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
            with _logging_to(self.log_path), listening, limit.running():
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
                run.state, run.verdict, run.reason = "error", Verdict.FAIL, describe(error)
                run.exit_code = error.exit_code if isinstance(error, Day0Error) else 1

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


def describe(error: BaseException | None) -> str:
    """An error as one sentence: day0's own as they are, others with their type."""
    if isinstance(error, Day0Error):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"


def slug(text: str) -> str:
    """Letters, digits and dashes, as Prefect's artifact keys and file names need."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _damage(store: Store, record: ArtifactRecord, stage: Stage[Any, Any]) -> str | None:
    try:
        artifact = store.get(record.digest, stage.returns)
    except Day0Error as error:
        return str(error)
    if not artifact.files:
        return None
    return changed_file(Path(record.tree or os.devnull), artifact.files, record.stats)


def _worth_a_retry(_task: Any, _run: Any, state: Any) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, Unavailable) and not isinstance(error, EngineDied)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


class _logging_to:
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

    def __exit__(self, *_: object) -> None:
        logging.getLogger("day0").removeHandler(self.handler)
        self.handler.close()
