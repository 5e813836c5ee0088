"""The session on the process runtime, with small scripts as engines."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from day0 import deadline
from day0.artifacts.service import LaunchSpec, Service
from day0.endpoint import EngineDied
from day0.errors import CheckFailed, Day0Error, InputError, StageTimeout
from day0.verdict import Check, Verdict
from tasks.service import registry
from tasks.service.readiness import NotReady
from tasks.service.session import EngineSession
from tests.service import stub

Scripted = Callable[[str], LaunchSpec]


def service_of(launch: LaunchSpec) -> Service:
    return Service(
        checks=(Check(name="x", verdict=Verdict.PASS, reason="x"),),
        launch=launch,
        ready_seconds=1,
        first_completion={"prompt": "p", "text": "t", "tokens": 1, "seconds": 1},  # type: ignore[arg-type]
        load_format="auto",
        security={},
        max_model_len=1,
    )


def test_ready_is_a_completion_answered(home: Path, scripted: Scripted) -> None:
    with EngineSession("run") as session:
        started = session.start(scripted(stub.LOADING))
        assert started.first_completion.text == " Paris."
        assert started.first_completion.tokens == 8
        assert [r.name for r in registry.records()] == [started.name]
        assert started.endpoint.diagnose() is None
        assert httpx.get(started.endpoint.url, trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(started.endpoint.url, trust_env=False)


@pytest.mark.parametrize(("script", "said"), [(stub.BROKEN, "HTTP 500"), (stub.EMPTY, "an empty completion")])
def test_an_open_port_is_not_ready(home: Path, scripted: Scripted, script: str, said: str) -> None:
    spec = scripted(script).model_copy(update={"ready_timeout": 1.5})
    with EngineSession("run") as session, pytest.raises(NotReady, match=said):
        session.start(spec)


def test_a_request_refused_for_good_ends_the_wait(home: Path, scripted: Scripted) -> None:
    with EngineSession("run") as session, pytest.raises(NotReady, match="does not exist"):
        session.start(scripted(stub.REFUSING))


def test_an_engine_that_fails_says_its_own_error(home: Path, scripted: Scripted) -> None:
    with EngineSession("run") as session, pytest.raises(EngineDied) as caught:
        session.start(scripted(stub.FAILING))
    assert "exit code 3" in str(caught.value)
    assert str(caught.value).endswith("ValueError: Could not find the shard of rank 0")


def test_a_faulty_folder_starts_nothing(home: Path, scripted: Scripted, model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with EngineSession("run") as session, pytest.raises(CheckFailed, match="chat template missing"):
        session.start(scripted(stub.READY))
    assert not registry.folder().exists()


def test_a_killed_engine_is_diagnosed_and_not_restarted(home: Path, scripted: Scripted) -> None:
    with EngineSession("run") as session:
        service = service_of(scripted(stub.READY))
        endpoint = session.endpoint(service)
        assert session.endpoint(service).url == endpoint.url
        engine = registry.records()[0].engine
        assert engine is not None
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            while True:
                httpx.get(endpoint.url, trust_env=False)
        wait_for(lambda: endpoint.diagnose() is not None)
        assert "killed by SIGKILL" in (endpoint.diagnose() or "")
        with pytest.raises(EngineDied, match="killed by SIGKILL"):
            session.endpoint(service)


def test_another_launch_takes_the_place_of_the_one_that_runs(home: Path, scripted: Scripted) -> None:
    """As smoke asks for the service at float32, and the benchmark for the service again."""
    with EngineSession("run") as session:
        service = service_of(scripted(stub.READY))
        command = (*service.launch.command, "--dtype", "float32")
        other = service.model_copy(update={"launch": service.launch.model_copy(update={"command": command})})
        first = session.endpoint(service)
        second = session.endpoint(other)
        assert [record.launch.command for record in registry.records()] == [command]
        with pytest.raises(httpx.ConnectError):
            httpx.get(first.url, trust_env=False)
        third = session.endpoint(service)
        assert [record.launch for record in registry.records()] == [service.launch]
        assert httpx.get(third.url, trust_env=False).status_code == 200
        assert second.diagnose() is not None


def test_a_launch_that_fails_leaves_the_way_free_for_the_former(home: Path, scripted: Scripted) -> None:
    with EngineSession("run") as session:
        service = service_of(scripted(stub.READY))
        broken = service.launch.model_copy(
            update={"command": ("python", "python3", "-c", "raise SystemExit('no float32')")}
        )
        session.endpoint(service)
        with pytest.raises(EngineDied, match="no float32"):
            session.endpoint(service.model_copy(update={"launch": broken}))
        assert registry.records() == []
        assert httpx.get(session.endpoint(service).url, trust_env=False).status_code == 200


def test_the_engine_is_stopped_when_the_body_fails(home: Path, scripted: Scripted) -> None:
    with pytest.raises(KeyboardInterrupt), EngineSession("run") as session:
        session.start(scripted(stub.READY))
        engine = registry.records()[0].engine
        raise KeyboardInterrupt
    assert engine is not None
    assert not engine.alive


def test_the_stages_time_limit_stops_a_start(home: Path, scripted: Scripted) -> None:
    limit = deadline.Deadline("service", 1.0)
    with EngineSession("run") as session, pytest.raises(StageTimeout), limit.running():
        session.start(scripted(stub.BROKEN))


def test_two_stages_at_a_time_share_one_engine(home: Path, scripted: Scripted) -> None:
    urls: list[str] = []
    with EngineSession("run") as session:
        service = service_of(scripted(stub.READY))
        threads = [threading.Thread(target=lambda: urls.append(session.endpoint(service).url)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(urls) == 3
    assert len(set(urls)) == 1


def test_an_engine_that_is_kept_outlives_the_session(home: Path, scripted: Scripted) -> None:
    with EngineSession("run", keep=True) as session:
        started = session.start(scripted(stub.READY))
    assert registry.reap() == []
    assert httpx.get(started.endpoint.url, trust_env=False).status_code == 200
    with pytest.raises(InputError, match=started.name):
        registry.find("another")
    assert registry.stop(registry.find(started.name)).was_running
    with pytest.raises(httpx.ConnectError):
        httpx.get(started.endpoint.url, trust_env=False)


def test_an_environment_that_is_gone_is_told(home: Path, scripted: Scripted) -> None:
    spec = scripted(stub.READY).model_copy(update={"environment": "/nowhere"})
    with EngineSession("run") as session, pytest.raises(Day0Error, match="environment is not at /nowhere"):
        session.start(spec)


def wait_for(condition: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(200):
        if condition():
            return
        waited.wait(0.05)
    pytest.fail("it did not happen within 10 s")
