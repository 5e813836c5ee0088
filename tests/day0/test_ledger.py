from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.exc import IntegrityError

from day0.errors import Day0Error, InputError, Unavailable
from day0.ledger import Base, Ledger, Run, Seen, StageRun


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    if request.param == "sqlite":
        return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    ledger = Ledger(os.environ["DAY0_TEST_POSTGRES"])
    with ledger.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE IF EXISTS alembic_version")
    return Ledger(os.environ["DAY0_TEST_POSTGRES"])


def test_the_migrations_make_the_tables_that_the_code_expects(ledger: Ledger) -> None:
    with ledger.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_what_is_written_is_read_again(ledger: Ledger) -> None:
    with ledger.session() as session:
        session.add(Run(id="r", source="dir:/m", target="cpu", request={"until": None, "a": [1, "ü"]}))
        session.add(StageRun(run_id="r", stage="plan", state="done", verdict="pass"))
    run = Ledger(ledger.engine.url.render_as_string(hide_password=False)).run("r")
    assert run.request == {"until": None, "a": [1, "ü"]}
    assert [stage.stage for stage in run.stages] == ["plan"]


def test_an_unknown_run_is_named(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="no run named 'nothing'"):
        ledger.run("nothing")


def test_a_failed_session_changes_nothing(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError), ledger.session() as session:
        session.add(Run(id="half", source="", target="", request={}))
        session.flush()
        raise RuntimeError
    with pytest.raises(InputError):
        ledger.run("half")


def test_a_release_can_be_claimed_once_however_many_try(ledger: Ledger) -> None:
    won: list[int] = []

    def claim(number: int) -> None:
        try:
            with ledger.session() as session:
                session.add(Seen(source="hf:a/b", revision="1", target="cpu"))
        except IntegrityError:
            return
        won.append(number)

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_opened_by_many_at_once(tmp_path: Path) -> None:
    url, errors = f"sqlite:///{tmp_path / 'many.db'}", []

    def work(number: int) -> None:
        try:
            with Ledger(url).session() as session:
                session.add(Run(id=f"r{number}", source="", target="", request={}))
        except Day0Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(Ledger(url).run(f"r{n}").id for n in range(8))


def test_sqlite_is_in_wal_mode(tmp_path: Path) -> None:
    with Ledger(f"sqlite:///{tmp_path / 'l.db'}").engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_an_absent_database_is_a_service_that_is_not_there() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        Ledger("postgresql+psycopg://nobody:x@127.0.0.1:1/none?connect_timeout=2")


def test_a_malformed_url_is_unusable_input() -> None:
    with pytest.raises(InputError, match="DAY0_LEDGER_URL"):
        Ledger("not a url")
