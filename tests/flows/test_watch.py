"""The watcher: each release once on each target, whoever looks and however often."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from day0.errors import InputError, Unavailable
from day0.ledger import Ledger, Run, Seen, now
from flows.commands.watch import watch as command
from flows.releases import HubCandidate, matters
from flows.trigger import STALE, Pass, Start, Started, Watcher, keep_watching
from flows.watch_file import WatchFile, read_watch_file
from tests.hub import LocalHub
from tests.models.tiny import make_tiny_llama


@pytest.fixture(scope="module")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrating takes most of a second: done once."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    Ledger(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, empty_ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    shutil.copy(empty_ledger, tmp_path / "home" / "ledger.db")
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DAY0_LEDGER_URL", raising=False)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", shards=2)


class Starts:
    """In the place of adapt: remembers what was started. Fails with `error` as long as that is set."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        self.error: BaseException | None = None

    def __call__(self, source: str, target: str) -> Started:
        if self.error:
            raise self.error
        self.started.append((source, target))
        return Started(f"run-{len(self.started)}", "pass")


def on_hub(**options: Any) -> WatchFile:
    organisation = {"name": "org", **options.pop("organisation", {})}
    return WatchFile.model_validate({"quiet_seconds": 0, "organisations": [organisation], **options})


def in_folder(path: Path, **options: Any) -> WatchFile:
    place = {"path": path, **options.pop("folder", {})}
    return WatchFile.model_validate({"quiet_seconds": 0, "folders": [place], **options})


def look(file: WatchFile, start: Start) -> Pass:
    """A pass of a watcher that remembers nothing but the ledger, as `--once` does."""
    return Watcher(file, start).run_pass()


def reasons(entries: list[Any]) -> dict[str, str]:
    return {entry.source: entry.reason for entry in entries}


def test_a_new_repository_starts_once(hub: LocalHub, model: Path) -> None:
    commit = hub.push("org/tiny", model)
    starts = Starts()
    first, second = look(on_hub(), starts), look(on_hub(), starts)
    assert starts.started == [(f"hf:org/tiny@{commit}", "cpu")]
    assert first.to_json()["released"] == [
        {"source": "hf:org/tiny", "revision": commit, "targets": ["cpu"], "runs": ["run-1"], "verdicts": ["pass"]}
    ]
    assert second == Pass()


def test_a_target_added_later_starts_only_that(hub: LocalHub, model: Path) -> None:
    hub.push("org/tiny", model)
    starts = Starts()
    look(on_hub(), starts)
    result = look(on_hub(targets=["cpu", "h100"]), starts)
    assert [target for _, target in starts.started] == ["cpu", "h100"]
    assert result.released[0].targets == ["h100"]


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("config.json", "config.json is not there yet"),
        ("tokenizer.json", "no tokenizer is there yet"),
        ("model.safetensors.index.json", "neither model.safetensors.index.json nor model.safetensors is there yet"),
        ("model-00002-of-00002.safetensors", "1 of 2 shards are not there yet, first model-00002-of-00002.safetensors"),
    ],
)
def test_a_repository_still_being_uploaded_waits(hub: LocalHub, model: Path, missing: str, reason: str) -> None:
    names = [path.name for path in model.iterdir() if path.name != missing]
    hub.push("org/tiny", model, only=names)
    starts = Starts()
    assert reasons(look(on_hub(), starts).waiting) == {"hf:org/tiny": reason}
    assert starts.started == []
    commit = hub.push("org/tiny", model)
    assert look(on_hub(), starts).waiting == []
    assert starts.started == [(f"hf:org/tiny@{commit}", "cpu")]


def test_only_a_commit_that_changes_the_model_starts_again(hub: LocalHub, model: Path) -> None:
    starts = Starts()
    hub.push("org/tiny", model)
    look(on_hub(), starts)
    (model / "README.md").write_text("# Tiny")
    hub.push("org/tiny", model)
    assert look(on_hub(), starts) == Pass()
    make_tiny_llama(model, shards=2, seed=1)
    commit = hub.push("org/tiny", model)
    assert look(on_hub(), starts).released[0].revision == commit
    assert len(starts.started) == 2


def test_a_watcher_that_runs_on_asks_only_for_what_changed(hub: LocalHub, model: Path) -> None:
    hub.push("org/tiny", model)
    starts = Starts()
    watcher = Watcher(on_hub(), starts)
    watcher.run_pass()
    watcher.run_pass()
    hub.requests.clear()
    watcher.run_pass()
    assert hub.requests == ["GET /api/models"]
    make_tiny_llama(model, shards=2, seed=1)
    hub.push("org/tiny", model)
    watcher.run_pass()
    assert len(starts.started) == 2


def test_names_are_chosen_by_patterns(hub: LocalHub, model: Path) -> None:
    for name in ("tiny", "tiny-GGUF", "other", "Tiny"):
        hub.push(f"org/{name}", model)
    hub.push("elsewhere/tiny", model)
    starts = Starts()
    look(on_hub(organisation={"include": ["tiny*"], "exclude": ["*-GGUF"]}), starts)
    assert [source.partition("@")[0] for source, _ in starts.started] == ["hf:org/tiny"]


def test_a_broken_repository_does_not_stop_the_pass(hub: LocalHub, model: Path) -> None:
    for name in ("gated", "failing", "badindex", "good"):
        hub.push(f"org/{name}", model)
    hub.gate("org/gated")
    hub.error("/org/failing/tree", 500)
    (model / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    hub.push("org/badindex", model)
    starts = Starts()
    result = look(on_hub(), starts)
    assert [source.partition("@")[0] for source, _ in starts.started] == ["hf:org/good"]
    found = reasons(result.unreadable)
    assert set(found) == {"hf:org/gated", "hf:org/failing", "hf:org/badindex"}
    assert "HF_TOKEN" in found["hf:org/gated"]
    assert "500" in found["hf:org/failing"]
    assert "weight_map" in found["hf:org/badindex"]


def test_a_hub_that_is_down_hides_neither_folders_nor_itself(hub: LocalHub, model: Path, tmp_path: Path) -> None:
    hub.error("/api/models$", 503)
    file = in_folder(tmp_path / "models", organisations=[{"name": "org"}])
    shutil.copytree(model, tmp_path / "models" / "one")
    starts = Starts()
    result = look(file, starts)
    assert len(starts.started) == 1
    assert "503" in reasons(result.unavailable)["hf:org/*"]


def test_something_else_than_a_hub_is_told_apart(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/nothing")
    assert "has it not" in reasons(look(on_hub(), Starts()).unreadable)["hf:org/*"]


def test_an_organisation_without_repositories_is_said_to_wait(hub: LocalHub) -> None:
    assert "no repository" in reasons(look(on_hub(), Starts()).waiting)["hf:org/*"]


def test_a_hub_of_its_own_is_where_the_release_is_fetched_from(
    hub: LocalHub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    hub.push("org/tiny", model)
    seen = []

    def start(source: str, target: str) -> Started:
        seen.append(os.environ["HF_ENDPOINT"])
        return Started("run")

    assert look(on_hub(organisation={"endpoint": hub.url}), start).released
    assert seen == [hub.url]
    assert os.environ["HF_ENDPOINT"] == "http://127.0.0.1:9"


def test_a_folder_starts_once_and_again_when_its_weights_change(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "one")
    file, starts = in_folder(tmp_path / "models"), Starts()
    assert look(file, starts).released[0].source == f"dir:{tmp_path}/models/one"
    (tmp_path / "models" / "one" / "README.md").write_text("# One")
    assert look(file, starts) == Pass()
    make_tiny_llama(tmp_path / "models" / "one", shards=2, seed=1)
    assert look(file, starts).released
    assert len(starts.started) == 2


def test_a_folder_that_is_being_copied_waits(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "models" / "one"
    shutil.copytree(model, copy)
    shard = copy / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    file, starts = in_folder(tmp_path / "models"), Starts()

    shard.unlink()
    (copy / f".{shard.name}.aB3dE9").write_bytes(whole[:100])
    assert "unfinished" in reasons(look(file, starts).waiting)[f"dir:{copy}"]
    (copy / f".{shard.name}.aB3dE9").unlink()
    assert shard.name in reasons(look(file, starts).waiting)[f"dir:{copy}"]
    shard.write_bytes(whole[:-1])
    assert shard.name in reasons(look(file, starts).waiting)[f"dir:{copy}"]
    assert starts.started == []
    shard.write_bytes(whole)
    assert look(file, starts).waiting == []
    assert len(starts.started) == 1


def test_a_folder_that_changed_just_now_waits_for_the_quiet_period(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "one")
    starts = Starts()
    waiting = look(in_folder(tmp_path / "models", quiet_seconds=3600), starts).waiting
    assert "3600 s" in waiting[0].reason
    assert starts.started == []
    look(in_folder(tmp_path / "models", quiet_seconds=0.2), starts)
    assert len(starts.started) == 1


def test_a_folder_that_changes_while_another_is_adapted_waits(model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(model, tmp_path / "models" / name)
    starts = Starts()

    def start(source: str, target: str) -> Started:
        (tmp_path / "models" / "two" / "config.json").write_text("{")
        return starts(source, target)

    result = look(in_folder(tmp_path / "models"), start)
    assert len(starts.started) == 1
    assert reasons(result.waiting) == {f"dir:{tmp_path}/models/two": "it is still changing"}


def test_hostile_folders_are_named(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "pipe")
    os.mkfifo(tmp_path / "models" / "pipe" / "extra.json")
    shutil.copytree(model, tmp_path / "models" / "dangling")
    (tmp_path / "models" / "dangling" / "vocab.json").symlink_to("nowhere")
    result = look(in_folder(tmp_path / "models"), Starts())
    assert result.released == []
    assert set(reasons(result.unreadable)) == {f"dir:{tmp_path}/models/{name}" for name in ("pipe", "dangling")}
    missing = look(in_folder(tmp_path / "not-there"), Starts())
    assert "cannot be read" in missing.unreadable[0].reason


def test_passes_at_the_same_time_start_once(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "one")
    starts, barrier = Starts(), threading.Barrier(4)
    watchers = [Watcher(in_folder(tmp_path / "models", targets=["cpu", "h100"]), starts) for _ in range(4)]

    def run(watcher: Watcher) -> None:
        barrier.wait()
        watcher.run_pass()

    threads = [threading.Thread(target=run, args=(watcher,)) for watcher in watchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(target for _, target in starts.started) == ["cpu", "h100"]


def test_what_could_not_begin_is_tried_again(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "one")
    file, starts = in_folder(tmp_path / "models"), Starts()
    starts.error = Unavailable("Docker is not running")
    assert "Docker is not running" in look(file, starts).unavailable[0].reason
    starts.error = InputError("no such engine")
    assert "no such engine" in look(file, starts).unreadable[0].reason
    starts.error = None
    assert len(look(file, starts).released) == 1


def test_an_interrupted_run_keeps_its_claim(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "one")
    file = in_folder(tmp_path / "models")

    def interrupted(source: str, target: str) -> Started:
        with Ledger().session() as session:
            session.add(Run(id="begun", source=source, target=target, request={}))
        raise KeyboardInterrupt

    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Watcher(file, interrupted, lines.append).run_pass()
    assert "`day0 rerun begun` continues it" in lines[-1]
    starts = Starts()
    assert look(file, starts) == Pass()
    with Ledger().session() as session:
        assert session.query(Seen).one().run_id == "begun"


def test_the_claim_of_a_killed_watcher_is_given_back(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "one")
    file, starts = in_folder(tmp_path / "models"), Starts()
    look(file, starts)
    with Ledger().session() as session:
        session.query(Seen).one().run_id = None
    assert look(file, starts) == Pass()
    with Ledger().session() as session:
        session.query(Seen).one().created = now() - 2 * STALE
    assert len(look(file, starts).released) == 1


def test_a_pass_starts_no_more_than_its_limit(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(model, tmp_path / "models" / name)
    file, starts = in_folder(tmp_path / "models", max_runs=2), Starts()
    first = look(file, starts)
    assert (len(first.released), len(first.waiting)) == (2, 1)
    assert "max_runs" in first.waiting[0].reason
    assert len(look(file, starts).released) == 1


def test_it_goes_on_while_the_hub_is_down_and_says_so(hub: LocalHub, model: Path) -> None:
    hub.push("org/tiny", model)
    hub.error("/api/models$", 500, times=2)
    stop, starts, lines = threading.Event(), Starts(), []
    for result in keep_watching(Watcher(on_hub(), starts, lines.append), 0.01, stop):
        if result.released:
            stop.set()
    assert len(starts.started) == 1
    assert sum("did not answer" in line for line in lines) == 2
    assert sum(line.startswith("unavailable") for line in lines) == 1  # the same state is told once
    assert "everything answers again" in lines


def test_what_matters_in_a_release() -> None:
    for name in ("model.safetensors", "config.json", "tokenizer.model", "chat_template.jinja", "merges.txt"):
        assert matters(name)
    for name in ("README.md", "LICENSE", ".gitattributes", "figure.png", "onnx/model.json", "notes.txt"):
        assert not matters(name)


def test_a_hostile_listing_is_refused() -> None:
    class Hub:
        named = None

        def files(self, *_: str) -> dict[str, Any]:
            from flows.releases import HubFile

            return {name: HubFile(type="file", path=name, size=1, oid="0") for name in ("config.json", "../../x.json")}

    from flows.releases import Listed

    listed = Listed.model_validate({"id": "org/x", "sha": "0" * 40, "lastModified": "2026-01-01T00:00:00Z"})
    with pytest.raises(InputError, match="unusable name"):
        HubCandidate(Hub(), listed).lacks()  # type: ignore[arg-type]


def test_a_wrong_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text("organisations: [{name: org, exlude: ['*']}]")
    with pytest.raises(
        InputError, match=r"watch\.yaml: unknown key 'organisations\.0\.exlude'; did you mean 'exclude'"
    ):
        read_watch_file(path)
    path.write_text("organisations: [{name: ../etc}]")
    with pytest.raises(InputError, match=r"organisations\.0\.name"):
        read_watch_file(path)
    path.write_text("targets: [cpu]")
    with pytest.raises(InputError, match="nothing is watched"):
        read_watch_file(path)
    path.write_text("targets: [cpuu]\nfolders: [{path: x}]")
    with pytest.raises(InputError, match="did you mean 'cpu'"):
        read_watch_file(path)
    path.write_text("folders: [{path: x}]")
    assert read_watch_file(path).folders[0].path == tmp_path / "x"


def test_the_example_is_a_watch_file() -> None:
    from day0.home import configs

    assert read_watch_file(configs() / "watch" / "example.yaml").organisations[0].wants("SmolLM2-135M-Instruct")


def run_command(*arguments: str) -> tuple[int, Any, str]:
    result = CliRunner().invoke(command, [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout), result.stderr


def test_the_command_reports_as_json_and_by_its_exit_code(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "watch.yaml"
    path.write_text(yaml.safe_dump({"organisations": [{"name": "org"}]}))
    code, data, _ = run_command("--once", "--config", str(path))
    assert (code, data["released"], data["waiting"][0]["source"]) == (0, [], "hf:org/*")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, data, errors = run_command("--once", "--config", str(path))
    assert (code, data["released"]) == (4, [])
    assert "http://127.0.0.1:9 does not answer" in errors
    code, data, _ = run_command("--once", "--config", str(tmp_path / "none.yaml"))
    assert (code, data["exit_code"]) == (2, 2)
    monkeypatch.setenv("DAY0_CONFIGS", str(tmp_path))
    code, data, _ = run_command("--once")
    assert code == 2
    assert "example.yaml" in data["error"]
