"""The watcher as a Prefect flow: one pass on a schedule, that announces each new release as the event `day0.release`.

The event starts the deployment of `adapt` for its target (prefect.yaml), in a run of its own on a worker; whoever else
learns of a release may send the same event.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from prefect import flow, get_client
from prefect.events import Event, Resource

from day0.errors import InputError, Unavailable
from day0.execution import slug
from day0.release import parse_source
from flows.trigger import Start, Started, Watcher
from flows.watch_file import WatchFile, read_watch_file

EVENT = "day0.release"


@flow(name="watch", log_prints=True)
def watch(config: str | None = None, emit: bool = False) -> dict[str, Any]:
    """One pass over what the watch file names; returns what `day0 watch --once --json` prints.

    Args:
        config: the watch file; None takes the default one.
        emit: announce new releases as events instead of adapting them in this flow.

    Raises:
        Unavailable: a service did not answer. What could be looked at nevertheless has been.
        InputError: the watch file is unusable.
    """
    file = read_watch_file(Path(config) if config else None)
    result = Watcher(file, announcing(file) if emit else adapting(file), print).run_pass()
    if result.unavailable:
        raise Unavailable("; ".join(f"{entry.source}: {entry.reason}" for entry in result.unavailable))
    return result.to_json()


def adapting(file: WatchFile) -> Start:
    """A `start` that adapts here and now."""

    def start(source: str, target: str) -> Started:
        from flows.adapt import bring_up

        report = bring_up(source, target, runtime=file.runtime, until=file.until)
        return Started(report.run, report.verdict.value)

    return start


def announcing(file: WatchFile) -> Start:
    """A `start` that sends the event `day0.release`.

    Raises:
        InputError: the watch file names a hub of its own: the worker that hears of the release would not know it.
    """
    if own := next((o for o in file.organisations if o.endpoint), None):
        raise InputError(f"{own.name}: an `endpoint` cannot be announced; set HF_ENDPOINT for the workers instead")

    def start(source: str, target: str) -> Started:
        return Started(f"event {announce(source, target, file.runtime)}")

    return start


def announce(source: str, target: str, runtime: str = "process") -> str:
    """Send the event `day0.release`; returns its id.

    Raises:
        Unavailable: the server did not take it. (Prefect's own `emit_event` sends later and tells nobody.)
    """
    name = slug(parse_source(source).name)
    event = Event(
        event=EVENT,
        resource=Resource({"prefect.resource.id": f"day0.release.{name}", "day0.target": target}),
        payload={"source": source, "target": target, "runtime": runtime},
    )
    try:
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event.model_dump(mode="json")]).raise_for_status()
    except httpx.HTTPError as error:
        raise Unavailable(f"Prefect's server did not take the event {EVENT}: {error}") from error
    return str(event.id)
