"""The Docker runtime: what `docker inspect` says of a running engine, and that only day0's own is ever removed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from day0.artifacts.service import LaunchSpec
from day0.endpoint import EngineDied
from day0.errors import InputError, Unavailable
from day0.image import docker_client
from day0.kernel_uses import read_marks
from day0.verdict import Verdict
from tasks.service import registry
from tasks.service.container import READ_MARKS, USES_FOLDER, reap_containers, security_of, start_container, state_reason
from tasks.service.engine import EngineConfig
from tasks.service.environment import prepare
from tasks.service.launch import CONTAINER_PORT, check_readable, launch_spec
from tasks.service.session import EngineSession
from tasks.service.task import _fenced
from tests.models.tiny import make_tiny_llama
from tests.service.stub import FAILING, READY
from tests.service.test_engine import ARGS, resharded


def test_without_a_daemon_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(Unavailable, match=r"Docker daemon does not answer.*--runtime process"), docker_client():
        pytest.fail("there is no daemon")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"Status": "running", "ExitCode": 0}, None),
        ({"Status": "exited", "ExitCode": 1}, "exit code 1"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "out of memory"),
        ({"Status": "exited", "ExitCode": 137, "OOMKilled": False}, "killed by SIGKILL"),
        ({"Status": "exited", "ExitCode": 127, "Error": "no such file"}, "exit code 127: no such file"),
    ],
)
def test_how_a_container_ended(state: dict[str, Any], reason: str | None) -> None:
    told = state_reason(state)
    assert told is None if reason is None else reason in (told or "")


def test_marks_are_read_in_a_container_as_they_were_written(tmp_path: Path) -> None:
    uses = [{"operator": "vllm::x  * \\n $HOME", "kernel": "a"}, {"operator": "y", "kernel": "b"}]
    (tmp_path / "7.json").write_text(json.dumps(uses))
    (tmp_path / "7.now").write_bytes(struct.pack("=QQ", 1, 5))
    (tmp_path / "8.json").write_text(json.dumps(uses))
    (tmp_path / "8.now").write_bytes(struct.pack("=QQ", 2, 6))
    (tmp_path / "9.now").write_bytes(b"")
    script = READ_MARKS.replace(USES_FOLDER, str(tmp_path))
    said = subprocess.run(["sh", "-c", script], capture_output=True, check=False).stdout
    assert [(mark.kernel, mark.operator) for mark in read_marks(said.splitlines())] == [
        (use["kernel"], use["operator"]) for use in uses
    ]


@pytest.fixture
def client() -> Iterator[Any]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def scripted_container(engine_home: Path, model: Path) -> Callable[..., LaunchSpec]:
    """A launch of the engine's image whose engine is a small script."""
    image = prepare("vllm-cpu", "docker").environment
    check_readable(model, own=True)

    def make(script: str, memory: int = 1 << 28) -> LaunchSpec:
        return LaunchSpec(
            engine="vllm-cpu",
            engine_version="0",
            runtime="docker",
            environment=image,
            lock_digest="0",
            model_path=str(model),
            served_model_name="tiny",
            command=("python", "-c", script.replace("127.0.0.1", "0.0.0.0"), str(CONTAINER_PORT)),
            env={},
            memory_bytes=memory,
            ready_timeout=60,
        )

    return make


Scripted = Callable[..., LaunchSpec]


@pytest.mark.docker
def test_a_container_is_fenced_in_and_removed(scripted_container: Scripted, client: Any, model: Path) -> None:
    with EngineSession("test") as session:
        started = session.start(scripted_container(READY))
        container = client.containers.get(f"day0-{started.name}")
        assert started.security == security_of(container.attrs)
        published = started.endpoint.url.removeprefix("http://")
        assert started.security == {
            "user": "10001:10001",
            "read_only_root": True,
            "no_new_privileges": True,
            "cap_drop": ["ALL"],
            "cap_add": [],
            "privileged": False,
            "memory_limit": 1 << 28,
            "pids_limit": container.attrs["HostConfig"]["PidsLimit"],
            "tmpfs": {"/tmp": "rw,nosuid,nodev,mode=1777"},
            "mounts": [{"source": str(model), "target": "/model", "read_only": True}],
            "published": [f"{published}->8000/tcp"],
            "health_check": True,
        }
        assert published.startswith("127.0.0.1:")
        assert container.attrs["HostConfig"]["PidsLimit"] > 0
        for attempt in ("touch /model/x", "touch /opt/x", "python -c 'import os; os.setuid(0)'"):
            assert container.exec_run(["sh", "-c", attempt]).exit_code != 0
        assert container.labels["day0.owner"].startswith(f"{os.getpid()}:")
    with pytest.raises(docker.errors.NotFound):
        client.containers.get(f"day0-{started.name}")


@pytest.mark.docker
def test_kernels_are_mounted_read_only_and_what_is_written_of_them_is_read(
    scripted_container: Scripted, client: Any, tmp_path: Path
) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    kernels.chmod(0o755)
    writes = (
        "import os, pathlib; folder = pathlib.Path(os.environ['DAY0_KERNEL_USES']); folder.mkdir()\n"
        "for n in (1, 2): (folder / f'{n}.json').write_text(f'[{n}]')\n"
    )
    spec = scripted_container(writes + READY).model_copy(update={"kernels": str(kernels)})
    with EngineSession("test") as session:
        started = session.start(spec)
        container = client.containers.get(f"day0-{started.name}")
        assert started.security["mounts"] == [
            {"source": str(kernels), "target": "/kernels", "read_only": True},
            {"source": spec.model_path, "target": "/model", "read_only": True},
        ]
        turned = container.attrs | {"Mounts": container.attrs["Mounts"][::-1]}  # as the daemon tells them at times
        assert started.security == security_of(container.attrs) == security_of(turned)
        assert _fenced(started.security).verdict is Verdict.PASS
        assert container.exec_run(["touch", "/kernels/x"]).exit_code != 0
        assert started.endpoint.kernel_uses is not None
        assert started.endpoint.kernel_uses() == [b"[1]", b"[2]"]
    assert started.endpoint.kernel_uses() == []


@pytest.mark.docker
def test_a_container_that_fails_says_its_own_error(scripted_container: Scripted) -> None:
    with EngineSession("test") as session, pytest.raises(EngineDied) as caught:
        session.start(scripted_container(FAILING))
    assert "exit code 3" in str(caught.value)
    assert "Could not find the shard" in str(caught.value)


@pytest.mark.docker
def test_out_of_memory_is_told_as_such(scripted_container: Scripted) -> None:
    with EngineSession("test") as session, pytest.raises(EngineDied, match="out of memory"):
        session.start(scripted_container("x = bytearray(1 << 30); print(len(x))", memory=64 << 20))


@pytest.mark.docker
def test_orphans_are_removed_and_nothing_else(
    scripted_container: Scripted, engine: EngineConfig, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = scripted_container("import time; time.sleep(600)")
    stranger = client.containers.create(spec.environment, entrypoint=["true"], labels={"day0.name": "other"})
    try:
        gone = registry.myself().model_copy(update={"started": 1})
        with monkeypatch.context() as patch:
            patch.setattr(registry, "myself", lambda: gone)
            handle = start_container(spec, engine, "test-orphan", "run", keep=False)
        alive = start_container(spec, engine, "test-alive", "run", keep=False)
        names = {container.name for container in client.containers.list()}
        assert "day0-test-alive" in names
        assert "day0-test-orphan" not in names, "starting another engine removes orphans"
        assert reap_containers() == []
        stranger.reload()
        registry.forget("test-orphan")
        alive.stop()
        assert handle.ended() == "its container was removed"
        with pytest.raises(InputError):
            registry.find("test-alive")
    finally:
        stranger.remove(force=True)


@pytest.mark.docker
@pytest.mark.engine
def test_the_real_engine_answers_from_its_container(engine_home: Path, tmp_path: Path, engine: EngineConfig) -> None:
    model = resharded(make_tiny_llama(tmp_path / "release", hidden=256), tmp_path / "shards")
    prepared = prepare("vllm-cpu", "docker")
    check_readable(model, own=True)
    spec = launch_spec(
        model,
        ARGS,
        "vllm-cpu",
        engine,
        "docker",
        prepared,
        served_name="tiny",
        attention=frozenset(),
        memory_bytes=4 << 30,
        ready_timeout=600,
    )
    with EngineSession("test") as session:
        started = session.start(spec)
        assert started.first_completion.tokens == 8
        assert started.security["read_only_root"] is True
