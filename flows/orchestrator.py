"""Prefect's own server, started by day0 when none is there and kept for the next command.

A server that the user has (`PREFECT_API_URL`) is taken as it is; day0's own listens on the loopback, on a free port or
on `$DAY0_SERVER_PORT`. Importing this module imports no Prefect: the
environment must be set before Prefect reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from day0.errors import Unavailable
from day0.files import write_json
from day0.home import home, make_home

START_LIMIT = 180.0

#: Nothing phones home, nothing is advertised, and the terminal belongs to day0 (Prefect's log goes to its server).
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "day0",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@dataclass(frozen=True)
class Server:
    """A running server: its API's address, and its process if day0 started it."""

    url: str
    pid: int | None

    @property
    def ui(self) -> str:
        return self.url.removesuffix("/api")


def use_server() -> Server:
    """Find or start the server, and point this process's Prefect at it. Call before Prefect is imported.

    Raises:
        Unavailable: the user's own server does not answer, or none could be started.
    """
    os.environ.setdefault("PREFECT_HOME", str(home() / "prefect"))
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if url := os.environ.get("PREFECT_API_URL"):
        if not _healthy(url):
            raise Unavailable(f"the Prefect server at PREFECT_API_URL={url} does not answer; start it or unset it")
        return Server(url, None)
    with _locked():
        server = running_server() or _start()
    os.environ["PREFECT_API_URL"] = server.url
    return server


def running_server() -> Server | None:
    """The server that day0 started and that still answers."""
    try:
        record = json.loads(_record().read_text())
        server = Server(record["url"], record["pid"])
    except (OSError, ValueError, KeyError):
        return None
    return server if _healthy(server.url) else None


def stop_server() -> bool:
    """Stop the server that day0 started; False if none was running."""
    with _locked():
        server = running_server()
        _record().unlink(missing_ok=True)
        if server is None or server.pid is None:
            return False
        os.killpg(server.pid, signal.SIGTERM)
        ends = time.monotonic() + 20
        while time.monotonic() < ends and _healthy(server.url):
            time.sleep(0.2)
        return True


def _start() -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", int(os.environ.get("DAY0_SERVER_PORT") or 0)))
        port = probe.getsockname()[1]
    log = home() / "logs" / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print("starting the orchestrator (kept for the next command; `day0 server stop` ends it)", file=sys.stderr)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=home(),
            env={k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"},
        )
    server = Server(f"http://127.0.0.1:{port}/api", process.pid)
    ends = time.monotonic() + START_LIMIT
    while not _healthy(server.url):
        if process.poll() is not None or time.monotonic() > ends:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            raise Unavailable(f"Prefect's server did not start; its log is {log}")
        time.sleep(0.2)
    write_json(_record(), {"url": server.url, "pid": server.pid})
    return server


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _record() -> Path:
    return home() / "server.json"


@contextmanager
def _locked() -> Iterator[None]:
    """One process at a time: two commands that start together must not start two servers."""
    with (make_home() / ".server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
