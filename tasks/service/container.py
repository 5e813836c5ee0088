"""The Docker runtime: the engine in a container that may do nothing but read its weights and answer on the loopback."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import Mount

from day0.artifacts.service import LaunchSpec
from day0.engine_kernels import CONTAINER_KERNELS
from day0.errors import CheckFailed, Unavailable
from day0.home import home
from day0.image import OWNER_LABEL, docker_client
from tasks.service import registry
from tasks.service.engine import EngineConfig
from tasks.service.launch import CONTAINER_MODEL, CONTAINER_PORT
from tasks.service.process import exit_reason
from tasks.service.runtime import Handle, kernel_environment

USER = "10001:10001"
#: Threads count as processes here, and an engine starts several for each core and library.
PIDS_LIMIT = 256 + 128 * (os.cpu_count() or 1)
#: Ranks and processes of an engine exchange through /dev/shm; it counts as memory only where it is used.
SHM_BYTES = 1 << 30
SECOND = 1_000_000_000
TAIL_LINES = 2000
PORT_LIMIT = 30.0

#: Asks what the engine serves. It only shows the container's state to people; readiness is a completion.
HEALTH = (
    "import urllib.request as r; "
    f"r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{CONTAINER_PORT}/health', timeout=5)"
)


#: In the container's own memory, which ends with it. Each process writes one line.
USES_FOLDER = "/tmp/day0-kernel-uses"
READ_USES = f'for f in {USES_FOLDER}/*.json; do [ -f "$f" ] && cat "$f" && echo; done | head -c 4000000'
READ_MARKS = (
    f'for f in {USES_FOLDER}/*.now; do [ -f "${{f%.now}}.json" ] && od -A n -v -t u8 -N 16 "$f" | tr -d "\\n" '
    '&& printf " " && cat "${f%.now}.json" && echo; done | head -c 4000000'
)


class ContainerHandle(Handle):
    """An engine in its container."""

    def __init__(self, name: str, url: str, container_id: str, engine: EngineConfig, grace: float) -> None:
        super().__init__(name, url, engine)
        self._id, self._grace = container_id, grace

    def security(self) -> dict[str, Any]:
        with docker_client() as client:
            return security_of(client.containers.get(self._id).attrs)

    def kernel_uses(self) -> list[bytes]:
        return self._read(READ_USES)

    def _marks(self) -> list[bytes]:
        return self._read(READ_MARKS)

    def _read(self, script: str) -> list[bytes]:
        """Read inside, so that the container needs nothing of the host's that it could write to: a line each."""
        with docker_client() as client:
            try:
                code, (said, _) = client.containers.get(self._id).exec_run(["sh", "-c", script], demux=True)
            except (NotFound, APIError):
                return []  # it is gone, or has just ended: whoever asks it next is told so
        return [line for line in (said or b"").splitlines() if line] if code == 0 else []

    def _remove(self) -> None:
        remove_container(self._id, self.name, self._grace)
        registry.forget(self.name)

    def _look(self) -> str | None:
        with docker_client() as client:
            try:
                state = client.containers.get(self._id).attrs["State"]
            except NotFound:
                return "its container was removed"
        return state_reason(state)

    def _log(self) -> list[str]:
        with docker_client() as client:
            try:
                text: bytes = client.containers.get(self._id).logs(tail=TAIL_LINES)
            except NotFound:
                return []
        return text.decode(errors="replace").splitlines()


def state_reason(state: dict[str, Any]) -> str | None:
    """How a container ended, from `docker inspect`'s State; None while it runs."""
    if state["Status"] in ("created", "running", "restarting", "paused"):
        return None
    if state.get("OOMKilled"):
        return f"out of memory: killed at its memory limit, exit code {state['ExitCode']}"
    if state.get("Error"):
        return f"exit code {state['ExitCode']}: {state['Error']}"
    code = state["ExitCode"]
    return exit_reason(128 - code) if code in (137, 143) else f"exit code {code}"


def security_of(attrs: dict[str, Any]) -> dict[str, Any]:
    """The settings that fence a container in, from `docker inspect`."""
    host = attrs["HostConfig"]
    return {
        "user": attrs["Config"]["User"],
        "read_only_root": host["ReadonlyRootfs"],
        "no_new_privileges": "no-new-privileges" in (host["SecurityOpt"] or []),
        "cap_drop": host["CapDrop"] or [],
        "cap_add": host["CapAdd"] or [],
        "privileged": host["Privileged"],
        "memory_limit": host["Memory"],
        "pids_limit": host["PidsLimit"],
        "tmpfs": host["Tmpfs"] or {},
        # The daemon keeps them in a map, and tells them in another order each time.
        "mounts": [
            {"source": m["Source"], "target": m["Destination"], "read_only": not m["RW"]}
            for m in sorted(attrs["Mounts"], key=lambda m: str(m["Destination"]))
        ],
        "published": sorted(
            f"{binding['HostIp']}:{binding['HostPort']}->{port}"
            for port, bindings in (attrs["NetworkSettings"]["Ports"] or {}).items()
            for binding in bindings or []
        ),
        "health_check": bool(attrs["Config"].get("Healthcheck")),
    }


def start_container(spec: LaunchSpec, engine: EngineConfig, name: str, run: str, keep: bool) -> ContainerHandle:
    """Start the engine's image.

    Raises:
        Unavailable: the daemon, the image or a published port is not there.
        CheckFailed: the daemon refuses the container.
    """
    owner = registry.myself()
    reap_containers()
    with docker_client() as client:
        try:
            container = client.containers.create(spec.environment, **_settings(spec, engine, name, run, keep, owner))
        except ImageNotFound as error:
            raise Unavailable(
                f"the engine's image {spec.environment} is not there: start it again to build it"
            ) from error
        except APIError as error:
            raise CheckFailed(f"Docker refuses the engine's container: {error.explanation}") from error
        try:
            container.start()
            url = _published(container)
            record = registry.EngineRecord(
                name=name, run=run, owner=owner, keep=keep, url=url, launch=spec, container=container.id
            )
            registry.save(record)
        except DockerException as error:
            container.remove(force=True)
            raise Unavailable(f"the engine's container did not start: {error}") from error
        except BaseException:
            container.remove(force=True)
            raise
    return ContainerHandle(name, url, container.id, engine, engine.stop_grace)


def remove_container(container_id: str, name: str, grace: float = 10.0) -> bool:
    """Stop and remove a container, if it is the one that day0 started under `name`. Returns whether it was running.

    Raises:
        Unavailable: the Docker daemon does not answer.
    """
    with docker_client() as client:
        try:
            container = client.containers.get(container_id)
        except NotFound:
            return False
        if container.labels.get("day0.name") != name:
            return False
        running: bool = container.status == "running"
        try:
            container.stop(timeout=round(grace))
            container.remove(force=True)
        except NotFound:
            return running  # another process removed it meanwhile
        return running


def reap_containers() -> list[str]:
    """Remove the containers of this `$DAY0_HOME` whose owner is gone, also those whose record was never written."""
    reaped = []
    with docker_client() as client:
        for container in client.containers.list(all=True, filters={"label": [f"day0.home={home()}", "day0.keep=no"]}):
            pid, started, host = container.labels[OWNER_LABEL].split(":", 2)
            if not registry.ProcessId(pid=int(pid), started=int(started), host=host).alive:
                container.remove(force=True)
                reaped.append(container.labels["day0.name"])
    return reaped


def _settings(
    spec: LaunchSpec, engine: EngineConfig, name: str, run: str, keep: bool, owner: registry.ProcessId
) -> dict[str, Any]:
    return {
        "name": f"day0-{name}",
        "command": list(spec.command),
        "environment": {**kernel_environment(spec, USES_FOLDER), **spec.env},
        "user": USER,
        "read_only": True,
        "tmpfs": {"/tmp": "rw,nosuid,nodev,mode=1777"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_bytes,
        "pids_limit": PIDS_LIMIT,
        "shm_size": SHM_BYTES,
        "init": True,
        "stop_signal": "SIGTERM",
        "mounts": [
            Mount(target, str(Path(source).resolve()), type="bind", read_only=True)
            for target, source in ((CONTAINER_MODEL, spec.model_path), (CONTAINER_KERNELS, spec.kernels))
            if source
        ],
        "ports": {f"{CONTAINER_PORT}/tcp": ("127.0.0.1", None)},
        "healthcheck": {
            "test": ["CMD", "python", "-c", HEALTH],
            "interval": 10 * SECOND,
            "timeout": 10 * SECOND,
            "retries": 3,
            "start_period": round(spec.ready_timeout) * SECOND,
        },
        "labels": {
            OWNER_LABEL: f"{owner.pid}:{owner.started}:{platform.node()}",
            "day0.home": str(home()),
            "day0.run": run,
            "day0.name": name,
            "day0.keep": "yes" if keep else "no",
        },
    }


def _published(container: Any) -> str:
    """The address on the loopback that Docker chose. A container that has ended already has none: it gets port 0, and
    whoever waits for it reports how it ended."""
    ends = time.monotonic() + PORT_LIMIT
    while time.monotonic() < ends:
        container.reload()
        if bindings := (container.attrs["NetworkSettings"]["Ports"] or {}).get(f"{CONTAINER_PORT}/tcp"):
            return f"http://127.0.0.1:{bindings[0]['HostPort']}"
        if container.status not in ("created", "running"):
            return "http://127.0.0.1:0"
        time.sleep(0.1)
    raise Unavailable("Docker did not publish the engine's port on the loopback")
