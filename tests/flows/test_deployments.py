"""prefect.yaml: its deployments are of flows that exist, and what the watcher announces starts the right one."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any

import pytest
import yaml
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.settings import PREFECT_API_URL, temporary_settings

from day0.errors import InputError, Unavailable
from day0.home import PROJECT
from day0.target import load_target
from flows.watch import announce, announcing
from flows.watch_file import WatchFile

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
TRIGGERS = [(d["name"], trigger) for d in DEPLOYMENTS for trigger in d.get("triggers", [])]


class _Server(BaseHTTPRequestHandler):
    """As much of Prefect's API as takes events."""

    events: list[dict[str, Any]]
    status: int

    def do_GET(self) -> None:
        self.send_response(404)  # the client asks for a CSRF token first; there is none
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/events":
            self.events += json.loads(body)
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[type[_Server]]:
    handler = type("Handler", (_Server,), {"events": [], "status": 204})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{httpd.server_port}/api"}):
            yield handler
        httpd.shutdown()


def flow_of(deployment: dict[str, Any]) -> Any:
    path, _, name = deployment["entrypoint"].partition(":")
    return getattr(import_module(path.removesuffix(".py").replace("/", ".")), name)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["name"])
def test_a_deployment_gives_its_flow_parameters_that_it_has(deployment: dict[str, Any]) -> None:
    known = set(inspect.signature(flow_of(deployment).fn).parameters)
    given = set(deployment["parameters"]).union(*(t["parameters"] for t in deployment.get("triggers", [])))
    assert given <= known
    load_target(deployment["work_pool"]["name"])  # a pool is named by the target that its workers have


@pytest.mark.parametrize(("name", "trigger"), TRIGGERS)
def test_what_is_announced_starts_adapt_on_its_target_only(
    server: type[_Server], name: str, trigger: dict[str, Any]
) -> None:
    target = trigger["match"]["day0.target"]
    announce("hf:org/Some_Model.1@0123", target, "process")
    announce("hf:org/Some_Model.1@0123", "another", "process")
    mine, other = (ReceivedEvent.model_validate(event) for event in server.events)
    parsed = EventTrigger.model_validate({k: v for k, v in trigger.items() if k in EventTrigger.model_fields})
    assert name == target
    assert parsed.covers(mine)
    assert not parsed.covers(other)
    for parameter, template in trigger["parameters"].items():
        assert template == f"{{{{ event.payload.{parameter} }}}}"
        assert parameter in mine.payload
    assert mine.payload["source"] == "hf:org/Some_Model.1@0123"


def test_an_event_that_is_not_taken_is_an_error(server: type[_Server]) -> None:
    server.status = 500
    with pytest.raises(Unavailable, match=r"did not take the event day0\.release"):
        announce("hf:org/model", "cpu")


def test_no_server_is_an_error() -> None:
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(Unavailable, match="did not take the event"),
    ):
        announce("hf:org/model", "cpu")


def test_a_hub_of_its_own_cannot_be_announced() -> None:
    file = WatchFile.model_validate({"organisations": [{"name": "org", "endpoint": "https://hub.example.org"}]})
    with pytest.raises(InputError, match="HF_ENDPOINT"):
        announcing(file)
