"""The ledger: what was run, from what, by what, and how it ended.

SQLAlchemy over SQLite (WAL) in `$DAY0_HOME` by default, or over any database by `$DAY0_LEDGER_URL`
(`postgresql+psycopg://…`). The schema is made and upgraded by Alembic's migrations when the ledger is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, ForeignKey, String, Text, UniqueConstraint, create_engine, event, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from day0.errors import InputError, Unavailable
from day0.home import make_home


def now() -> datetime:
    """The time in UTC, without a zone: what SQLite and PostgreSQL both keep exactly."""
    return datetime.now(UTC).replace(tzinfo=None)


class Base(DeclarativeBase):
    """Base of the ledger's tables."""


class Run(Base):
    """One release on one target. Running it again adds stage runs; it stays the same run."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    source: Mapped[str] = mapped_column(Text)
    target: Mapped[str] = mapped_column(String(100))
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    model: Mapped[str] = mapped_column(Text, default="")
    revision: Mapped[str] = mapped_column(String(100), default="")
    verdict: Mapped[str | None] = mapped_column(String(20))
    rung: Mapped[str] = mapped_column(String(20), default="none")
    error: Mapped[str | None] = mapped_column(Text)
    recipe: Mapped[str | None] = mapped_column(Text)
    started: Mapped[datetime] = mapped_column(default=now)
    updated: Mapped[datetime] = mapped_column(default=now, onupdate=now)
    stages: Mapped[list[StageRun]] = relationship(back_populates="run", order_by="StageRun.id")


class ArtifactRecord(Base):
    """An artifact that a stage made: where it is, from which inputs, by which versions."""

    __tablename__ = "artifacts"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(300), index=True)
    """The cache key under which it may be taken again."""
    stage: Mapped[str] = mapped_column(String(50))
    digest: Mapped[str] = mapped_column(String(64), index=True)
    verdict: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text)
    inputs: Mapped[dict[str, str]] = mapped_column(JSON)
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    versions: Mapped[dict[str, str]] = mapped_column(JSON)
    tree: Mapped[str | None] = mapped_column(Text)
    """The folder of its files."""
    stats: Mapped[dict[str, list[int]]] = mapped_column(JSON)
    """Of each file: size, mtime in ns, inode, as they were when its digest was last seen to be right."""
    seconds: Mapped[float]
    created: Mapped[datetime] = mapped_column(default=now)
    superseded: Mapped[str | None] = mapped_column(Text)
    """Why it must not be taken again; null while it may."""


class StageRun(Base):
    """One stage of one run, each time that it was run or taken from the cache."""

    __tablename__ = "stage_runs"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), index=True)
    stage: Mapped[str] = mapped_column(String(50))
    state: Mapped[str] = mapped_column(String(20))
    """`running`, `done`, `error` (it could not do its work) or `not run` (what it needs is not there)."""
    verdict: Mapped[str | None] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text, default="")
    exit_code: Mapped[int] = mapped_column(default=0)
    artifact_id: Mapped[int | None] = mapped_column(ForeignKey("artifacts.id"))
    cached: Mapped[bool] = mapped_column(default=False)
    seconds: Mapped[float] = mapped_column(default=0.0)
    log: Mapped[str | None] = mapped_column(Text)
    started: Mapped[datetime] = mapped_column(default=now)
    pid: Mapped[int | None]
    run: Mapped[Run] = relationship(back_populates="stages")
    artifact: Mapped[ArtifactRecord | None] = relationship()


class Seen(Base):
    """A release that the watcher has started on a target: once, however often it is seen.

    `revision` is the digest of what matters in it (weights, configs, tokenizer), so that a commit that changes only its
    README is no new release.
    """

    __tablename__ = "seen"
    __table_args__ = (UniqueConstraint("source", "revision", "target"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(String(500))
    revision: Mapped[str] = mapped_column(String(100))
    target: Mapped[str] = mapped_column(String(100))
    run_id: Mapped[str | None] = mapped_column(String(200))
    created: Mapped[datetime] = mapped_column(default=now)


class Ledger:
    """The ledger's database, opened and brought to the newest schema.

    Raises:
        Unavailable: the database cannot be reached.
        InputError: its URL is malformed.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ.get("DAY0_LEDGER_URL") or f"sqlite:///{make_home() / 'ledger.db'}"
        try:
            self.engine = create_engine(self.url, pool_pre_ping=True)
        except (SQLAlchemyError, ImportError) as error:
            raise InputError(f"DAY0_LEDGER_URL cannot be used: {error}") from error
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _sqlite_pragmas)
            # A transaction takes the write lock when it begins: two that only later wish to write would deadlock.
            event.listen(self.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        try:
            migrate(self.engine)
        except SQLAlchemyError as error:
            raise Unavailable(f"the ledger's database does not answer: {_first_line(error)}") from error

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session whose changes are committed when the body ends well."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def run(self, run_id: str) -> Run:
        """The run by that name.

        Raises:
            InputError: there is none.
        """
        with self.session() as session:
            run = session.get(Run, run_id)
            if run is None:
                raise InputError(f"no run named {run_id!r}; `day0 status` lists the runs")
            for stage in run.stages:
                _ = stage.artifact
            return run

    def usable(self, key: str) -> ArtifactRecord | None:
        """The newest artifact under `key` that may be taken again."""
        query = select(ArtifactRecord).where(ArtifactRecord.key == key, ArtifactRecord.superseded.is_(None))
        with self.session() as session:
            return session.scalars(query.order_by(ArtifactRecord.id.desc()).limit(1)).first()

    def supersede(self, record: ArtifactRecord, why: str) -> None:
        """See to it that an artifact is not taken again."""
        with self.session() as session:
            session.get_one(ArtifactRecord, record.id).superseded = why

    def generation(self, key: str) -> int:
        """How many artifacts under `key` have been superseded."""
        superseded = ArtifactRecord.key == key, ArtifactRecord.superseded.is_not(None)
        with self.session() as session:
            return session.scalar(select(func.count()).select_from(ArtifactRecord).where(*superseded)) or 0


def migrate(engine: Engine) -> None:
    """Bring the database to the newest schema. Two processes may do so at once: one waits for the other."""
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    head = ScriptDirectory.from_config(config).get_current_head()
    with engine.connect() as connection:
        if MigrationContext.configure(connection).get_current_revision() == head:
            return
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7079)")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _sqlite_pragmas(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy begins transactions; the driver must not
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
