"""`day0 watch`: start adapt for releases that newly appear."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from flows.output import Answer, command


@command(name="watch")
@click.option("--once", is_flag=True, help="One pass instead of watching until Ctrl-C.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The watch file; by default configs/watch/default.yaml (configs/watch/example.yaml explains it).",
)
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=300.0, show_default=True, help="Seconds between passes."
)
def watch(once: bool, config: Path | None, interval: float) -> Answer:
    """Start adapt for releases that newly appear on a hub or in a folder: once per release and target.

    A release that is still being uploaded waits. A run's verdict is reported and does not make watch fail; exit code 4
    of --once says that a hub or another service did not answer.
    """
    from threading import Event

    from day0.errors import Unavailable
    from flows.trigger import Pass, Started, Watcher, keep_watching
    from flows.watch_file import read_watch_file

    file = read_watch_file(config)

    def start(source: str, target: str) -> Started:
        # Only now: a pass that starts nothing needs no orchestrator.
        from flows.orchestrator import use_server

        use_server()
        from flows.watch import adapting

        return adapting(file)(source, target)

    def say(line: str) -> None:
        print(line, file=sys.stderr if os.environ.get("DAY0_JSON") else sys.stdout, flush=True)

    watcher = Watcher(file, start, say)
    result = Pass()
    if once:
        result = watcher.run_pass()
        if result.unavailable:
            print("day0: not everything that the pass needed has answered; run it again later", file=sys.stderr)
        elif not result.released:
            say("nothing new")
        return Answer(result.to_json(), lambda: None, Unavailable.exit_code if result.unavailable else 0)
    say(f"watching every {interval:g} s; Ctrl-C ends it")
    with _terminated_as_interrupted():
        try:
            for done in keep_watching(watcher, interval, Event()):
                result = Pass([*result.released, *done.released], done.waiting, done.unreadable, done.unavailable)
        except KeyboardInterrupt:
            say("stopped")
    return Answer(result.to_json(), lambda: None)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the watcher as Ctrl-C does, so that a service manager stops it cleanly."""

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    saved = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, saved)


command = watch
