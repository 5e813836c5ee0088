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
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import CacheKeyFnPolicy
from prefect.tasks import exponential_backoff
from sqlalchemy import select

from day0.artifacts.base import Artifact, Settings
from day0.endpoint import EngineDied
from day0.errors import Day0Error, Unavailable
from day0.execution import Execution, Resources, workspace
from day0.files import digest_of
from day0.fingerprint import code_digest, versions
from day0.ledger import ArtifactRecord, Ledger
from day0.store import Store, changed_file

__all__ = ["HOURS", "MINUTES", "Resources", "Stage", "stage", "tree_of", "workspace"]

MINUTES = 60.0
HOURS = 3600.0

P = ParamSpec("P")
A = TypeVar("A", bound=Artifact)


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
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, given: self._prefect_key(given)),
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

    def recorded(
        self, inputs: Mapping[str, str | None], settings: Mapping[str, Any], force: str | None = None
    ) -> tuple[str, ArtifactRecord | None]:
        """The cache key with its generation, and the record that may be taken under it: one that is still whole.

        `force` says why none may be taken. A record that may not be taken is superseded.
        """
        key, ledger, store = self.key(inputs, settings), Ledger(), Store()
        while (record := ledger.usable(key)) and (why := force or _damage(store, record, self)):
            ledger.supersede(record, why)
            logging.getLogger(f"day0.{self.name}").warning("made again: %s", why)
        return f"{key}/{ledger.generation(key)}", record

    def _prefect_key(self, given: Mapping[str, Any]) -> str:
        return self.recorded(given["inputs"], given["settings"], given["force"])[0]

    def _body(self) -> Callable[..., str]:
        def body(
            run_id: str,
            inputs: dict[str, str | None],
            settings: dict[str, Any],
            resources: Resources,
            force: str | None,
        ) -> str:
            """`force` says why what is recorded must not be taken; None lets it be taken."""
            return Execution(self, run_id, inputs, settings, resources).digest()

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


def tree_of(artifact: Artifact) -> Path:
    """The folder that an artifact's `files` lie in."""
    ledger = Ledger()
    with ledger.session() as session:
        query = select(ArtifactRecord).filter_by(digest=artifact.digest).order_by(ArtifactRecord.id.desc())
        record = session.scalars(query.limit(1)).first()
    return artifact.tree(Path(record.tree if record and record.tree else os.devnull))


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
