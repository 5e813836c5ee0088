from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from day0.ledger import ArtifactRecord, Ledger, Run
from day0.stage import Resources, Stage
from day0.store import Store
from day0.verdict import Verdict
from flows.pipeline import Outcome, Pipeline
from tests.contract import toy

pytestmark = [pytest.mark.orchestrator, pytest.mark.usefixtures("calls_file")]
_numbers = itertools.count()


def run(build: Callable[[Pipeline], Any], run_id: str | None = None, **options: Any) -> list[Outcome]:
    """A flow run of what `build` submits."""
    run_id = run_id or f"run-{os.getpid()}-{next(_numbers)}"
    with Ledger().session() as session:
        session.merge(Run(id=run_id, source="dir:toy", target="cpu", request={}))

    @flow(name="toy")
    def toy_flow() -> list[Outcome]:
        pipeline = Pipeline(run_id, Resources(), **options)
        build(pipeline)
        return pipeline.outcomes()

    return toy_flow()


def chain(text: str = "a", sleep: float = 0.0) -> Callable[[Pipeline], None]:
    def build(pipeline: Pipeline) -> None:
        made = pipeline.submit(toy.make_text, settings=toy.TextSettings(text=text))
        folder = pipeline.submit(toy.make_folder, made, settings=toy.FolderSettings(sleep=sleep))
        pipeline.submit(toy.read_folder, folder)

    return build


def summary(outcomes: list[Outcome]) -> dict[str, tuple[str, bool]]:
    return {o.name: (o.verdict.value, o.cached) for o in outcomes}


def test_a_second_run_takes_everything_from_the_store() -> None:
    first, second = run(chain("second")), run(chain("second"))
    assert summary(first) == dict.fromkeys(("download", "reshard", "service"), ("pass", False))
    assert summary(second) == dict.fromkeys(("download", "reshard", "service"), ("pass", True))
    assert toy.calls() == ["download", "reshard", "service"]
    assert [o.artifact for o in first] == [o.artifact for o in second]


def test_other_settings_make_another_artifact() -> None:
    a, b = run(chain("one")), run(chain("other"))
    assert all(x.artifact != y.artifact for x, y in zip(a, b, strict=True))


def test_a_changed_file_is_noticed_and_made_again() -> None:
    outcomes = run(chain("changed"))
    path = tree(outcomes[1]) / "file.txt"
    path.write_text("CHANGEDCHANGED")
    again = run(chain("changed"))
    assert summary(again) == {"download": ("pass", True), "reshard": ("pass", False), "service": ("pass", True)}
    assert path.read_text() == "changedchanged"


def test_a_deleted_file_is_noticed_and_made_again() -> None:
    outcomes = run(chain("deleted"))
    (tree(outcomes[1]) / "file.txt").unlink()
    assert summary(run(chain("deleted")))["reshard"] == ("pass", False)
    assert (tree(outcomes[1]) / "file.txt").read_text() == "deleteddeleted"


def test_a_touched_file_is_looked_at_and_kept() -> None:
    outcomes = run(chain("touched"))
    os.utime(tree(outcomes[1]) / "file.txt", (1, 1))
    assert summary(run(chain("touched")))["reshard"] == ("pass", True)


def test_an_artifact_whose_record_was_tampered_with_is_made_again() -> None:
    digest = run(chain("tampered"))[0].artifact
    assert digest is not None
    path = Store()._object(digest)
    path.write_text(path.read_text().replace("tampered", "TAMPERED"))
    again = run(chain("tampered"))
    assert summary(again)["download"] == ("pass", False)


def test_a_run_repeated_from_a_stage_reuses_what_is_before_it() -> None:
    run(chain("from"))
    again = run(chain("from"), refresh_from="reshard")
    assert summary(again) == {"download": ("pass", True), "reshard": ("pass", False), "service": ("pass", False)}


def test_until_ends_after_that_stage() -> None:
    assert [o.name for o in run(chain("until"), until="reshard")] == ["download", "reshard"]


def test_code_of_the_folder_and_of_what_it_imports_belongs_to_the_key(tmp_path: Path) -> None:
    from day0.fingerprint import _imported

    imported = {path.name for path in _imported(toy.make_text.folder)}
    assert {"http.py", "deadline.py", "process.py", "errors.py", "verdict.py"} <= imported
    key = toy.make_text.key({}, {})
    assert key == toy.make_text.key({}, {})
    other: Stage[Any, Any] = Stage(toy.make_text.function, "download", 2, 0, 1.0, ())
    assert other.key({}, {}) != key


def test_a_stage_that_is_submitted_again_stands_in_the_place_of_what_it_was() -> None:
    def build(pipeline: Pipeline) -> None:
        first = pipeline.submit(toy.make_text, settings=toy.TextSettings(text="a"))
        assert pipeline.artifact(first)
        again = pipeline.submit(toy.make_text, settings=toy.TextSettings(text="b"))
        pipeline.submit(toy.read_folder, pipeline.submit(toy.make_folder, again, settings=toy.FolderSettings()))

    for cached in (False, True):
        outcomes = run(build)
        assert summary(outcomes) == dict.fromkeys(("download", "reshard", "service"), ("pass", cached))
        made = {outcome.name: Store().read(outcome.artifact or "")["content"] for outcome in outcomes}
        assert (made["download"]["text"], made["service"]["text"]) == ("b", "bb")
    assert toy.calls() == ["download", "download", "reshard", "service"]


def test_a_failed_verdict_is_recorded_and_stops_what_needs_it_and_is_not_reused() -> None:
    def build(pipeline: Pipeline) -> None:
        made = pipeline.submit(toy.make_text, settings=toy.TextSettings(text="bad", verdict=Verdict.FAIL))
        folder = pipeline.submit(toy.make_folder, made, settings=toy.FolderSettings())
        pipeline.submit(toy.read_folder, folder)

    outcomes = {o.name: o for o in run(build)}
    assert outcomes["download"].verdict is Verdict.FAIL
    assert outcomes["download"].artifact is not None
    for name in ("reshard", "service"):
        assert outcomes[name].verdict is Verdict.SKIPPED
        assert outcomes[name].artifact is None
        assert "download: fail" in outcomes[name].reason
    assert summary(run(build))["download"] == ("fail", False)
    assert toy.calls() == ["download", "download"]


def test_a_stage_that_fails_before_its_body_is_reported_as_that_and_not_as_it_was_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = "run-before-its-body"
    assert {o.verdict for o in run(chain("body"), run_id=run_id)} == {Verdict.PASS}

    def broken(self: Store, digest: str, kind: type[Any]) -> Any:
        raise ZeroDivisionError("the disk is upside down")

    monkeypatch.setattr(Store, "get", broken)
    outcomes = {o.name: o for o in run(chain("body"), run_id=run_id)}
    assert outcomes["download"].verdict is Verdict.FAIL
    assert "ZeroDivisionError: the disk is upside down" in outcomes["download"].reason
    assert outcomes["reshard"].reason == "not run (download: fail)"
    assert {s.stage: s.verdict for s in Ledger().run(run_id).stages}["download"] == Verdict.FAIL


def test_digests_of_code_are_taken_by_many_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from day0 import fingerprint

    fingerprint._code_digest.cache_clear()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: fingerprint.code_digest(toy.make_text.folder), range(64)))
    assert len(set(found)) == 1


def test_an_absent_service_is_tried_again_and_its_exit_code_kept() -> None:
    def build(failures: int) -> Callable[[Pipeline], Any]:
        return lambda pipeline: pipeline.submit(toy.flaky, settings=toy.FlakySettings(failures=failures))

    outcome = run(build(1))[0]
    assert outcome.verdict is Verdict.PASS
    assert toy.calls() == ["profile"] * 2
    outcome = run(build(100))[0]
    assert (outcome.verdict, outcome.exit_code) == (Verdict.FAIL, 4)
    assert outcome.reason == "the toy service is not there"


@pytest.mark.parametrize("how", ["subprocess", "grandchild", "http"])
def test_a_timeout_ends_what_the_stage_waits_for(how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        settings = toy.BlockSettings(how=how, url=url)
        outcome = run(lambda pipeline: pipeline.submit(toy.block, settings=settings))[0]
    assert outcome.verdict is Verdict.FAIL
    assert outcome.reason == "smoke took longer than its limit of 2 s and was ended"
    assert outcome.seconds < 30
    assert not toy.running("sleep 613")


def test_lineage_and_versions_are_recorded() -> None:
    outcomes = run(chain("lineage"))
    record = record_of(outcomes[1])
    assert record.inputs == {"text": outcomes[0].artifact}
    assert record.versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "day0" in record.versions


def test_a_killed_run_leaves_nothing_half_written_and_is_continued(home: Path, calls_file: Path) -> None:
    script = textwrap.dedent(
        """
        from tests.contract.test_stage import chain, run
        run(chain("killed", sleep=600))
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": os.getcwd()})
    ends = time.monotonic() + 60
    while "reshard" not in toy.calls():
        assert time.monotonic() < ends
        assert child.poll() is None
        time.sleep(0.1)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert list((home / "store" / "tmp").glob(f"{child.pid}-*"))
    Store().sweep()
    assert not list((home / "store" / "tmp").glob(f"{child.pid}-*"))
    assert not any(p.read_text() == "killed" for p in (home / "store" / "trees").rglob("file.txt"))
    again = run(chain("killed"))
    assert summary(again) == {"download": ("pass", True), "reshard": ("pass", False), "service": ("pass", False)}


def tree(outcome: Outcome) -> Path:
    return Path(record_of(outcome).tree or os.devnull)


def record_of(outcome: Outcome) -> ArtifactRecord:
    with Ledger().session() as session:
        record = session.query(ArtifactRecord).filter_by(digest=outcome.artifact).first()
        assert record is not None
        return record
