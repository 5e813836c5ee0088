"""`day0 server`: the orchestrator that day0 keeps between commands."""

from __future__ import annotations

import click

from flows.output import Answer, command


@command(name="server")
@click.argument("action", type=click.Choice(["status", "start", "stop"]), default="status")
def server(action: str) -> Answer:
    """The orchestrator (Prefect's server) that day0 starts when it needs one, and keeps."""
    from flows.orchestrator import running_server, stop_server, use_server

    if action == "start":
        found = use_server()
    else:
        stopped = stop_server() if action == "stop" else False
        running = running_server()
        if running is None:
            text = "stopped" if stopped else "not running; the next `day0 adapt` starts it"
            return Answer({"running": False}, lambda: print(text))
        found = running
    data = {"running": True, "url": found.url, "ui": found.ui, "pid": found.pid}
    return Answer(data, lambda: print(f"running at {found.ui} (process {found.pid or 'of another'})"))


command = server
