"""The process runtime: the engine as a local process under a supervisor that outlives no owner."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from day0.artifacts.service import LaunchSpec
from day0.errors import Unavailable
from tasks.service import logs, registry, supervisor
from tasks.service.engine import EngineConfig
from tasks.service.runtime import Handle, kernel_environment

START_LIMIT = 30.0

#: Of day0's own environment the engine gets these; everything else it gets from its config, so that a run on one
#: machine is the run on another.
PASSED_ON = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "TZ", "USER", "XDG_CACHE_HOME")


class ProcessHandle(Handle):
    """An engine under its supervisor."""

    def __init__(self, record: registry.EngineRecord, engine: EngineConfig, watcher: subprocess.Popen[bytes]) -> None:
        super().__init__(record.name, record.url, engine)
        self._record, self._watcher = record, watcher

    def security(self) -> dict[str, Any]:
        return {"user": getpass.getuser(), "uid": os.getuid(), "bound_to": self.url.removeprefix("http://")}

    def kernel_uses(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(registry.uses_folder(self.name).glob("*.json"))]

    def _marks(self) -> list[bytes]:
        found = []
        for path in sorted(registry.uses_folder(self.name).glob("*.now")):
            counts = path.with_suffix(".json")
            if (mark := path.read_bytes()[:16]) and len(mark) == 16 and counts.is_file():
                found.append(b"%d %d " % struct.unpack("=QQ", mark) + counts.read_bytes())
        return found

    def _look(self) -> str | None:
        gone = self._watcher.poll() is not None  # before the status is read: it is written before the supervisor ends
        code = registry.status(self.name).get("exit_code")
        if code is not None:
            return exit_reason(code)
        return "its supervisor was killed" if gone else None

    def _log(self) -> list[str]:
        return logs.tail(registry.folder() / f"{self.name}.log")

    def _remove(self) -> None:
        registry.stop(self._record)
        if self._watcher.stdin:
            self._watcher.stdin.close()
        self._watcher.wait()


def start_process(spec: LaunchSpec, engine: EngineConfig, name: str, run: str, keep: bool) -> ProcessHandle:
    """Start the engine of an environment's folder; its output goes to `$DAY0_HOME/engines/NAME.log`.

    Raises:
        Unavailable: the environment has no Python, or the supervisor did not start.
    """
    python = Path(spec.environment) / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"the engine's environment is not at {spec.environment}: start it again to have it made")
    port = free_port()
    folder = registry.folder()
    folder.mkdir(parents=True, exist_ok=True)
    log, status = folder / f"{name}.log", folder / f"{name}.status"
    command = [str(python), *(part.replace("{port}", str(port)) for part in spec.command[1:])]
    # Short, for engines put sockets there, whose paths the system limits to 107 bytes.
    temporary = tempfile.mkdtemp(prefix=registry.TEMPORARY)
    watcher = subprocess.Popen(
        [
            sys.executable, supervisor.__file__, "--temporary", temporary, "--log", str(log), "--status", str(status),
            "--grace", str(engine.stop_grace), *(["--keep"] if keep else []), "--", *command,
        ],
        stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=log.open("ab"),
        env={**_environment(spec, python, name), "TMPDIR": temporary},
        cwd=folder,
        start_new_session=True,
    )  # fmt: skip
    try:
        record = registry.EngineRecord(
            name=name,
            run=run,
            owner=registry.myself(),
            keep=keep,
            url=f"http://127.0.0.1:{port}",
            launch=spec,
            supervisor=registry.ProcessId.of(watcher.pid),
            log=str(log),
            temporary=temporary,
        )
        registry.save(record)
        pid = _engine_pid(name, watcher)
        record = record.model_copy(update={"engine": registry.ProcessId.of(pid) if pid else None})
        registry.save(record)
    except BaseException:
        watcher.terminate()
        watcher.wait()
        registry.forget(name)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return ProcessHandle(record, engine, watcher)


def exit_reason(code: int) -> str:
    """An exit code as subprocess gives it, in words: negative for a signal."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def free_port() -> int:
    """A port on the loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment(spec: LaunchSpec, python: Path, name: str) -> dict[str, str]:
    passed = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
    path = f"{python.parent}:/usr/local/bin:/usr/bin:/bin"
    return {**passed, "PATH": path, **kernel_environment(spec, str(registry.uses_folder(name))), **spec.env}


def _engine_pid(name: str, watcher: subprocess.Popen[bytes]) -> int | None:
    """The engine's process id, as soon as the supervisor has written it; None if it could not be started."""
    ends = time.monotonic() + START_LIMIT
    while time.monotonic() < ends:
        if status := registry.status(name):
            pid: int | None = status["pid"]
            return pid
        if watcher.poll() is not None:
            raise Unavailable(
                f"the engine's supervisor ended with code {watcher.returncode} before it started anything"
            )
        time.sleep(0.02)
    raise Unavailable(f"the engine's supervisor did not start within {START_LIMIT:g} s")
