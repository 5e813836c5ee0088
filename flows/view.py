"""What a person sees while a run goes on: progress bars on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from day0 import progress
from day0.verdict import Verdict
from flows.pipeline import Outcome

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow", Verdict.SKIPPED: "dim"}
#: Seconds between two plain lines of the same stage.
PLAIN_INTERVAL = 10.0


class RunView:
    """Shows a run's stages as they work and as they end."""

    def __init__(self) -> None:
        self.console = Console(file=sys.stderr, highlight=False)
        self.bars: dict[str, TaskID] = {}
        self.said: dict[str, float] = {}
        self.lock = threading.Lock()
        self.progress: Progress | None = None
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
            self.progress = Progress(*columns, console=self.console, transient=True)

    def __enter__(self) -> Self:
        if self.progress:
            self.progress.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self.progress:
            self.progress.stop()

    def on_progress(self, step: progress.Progress) -> None:
        """Show where a stage stands."""
        text = f"{step.stage:<11} {step.what}{_amount(step)}"
        with self.lock:
            if self.progress:
                if step.stage not in self.bars:
                    self.bars[step.stage] = self.progress.add_task(text, total=step.total)
                self.progress.update(self.bars[step.stage], description=text, completed=step.done, total=step.total)
                return
            if time.monotonic() - self.said.get(step.stage, -PLAIN_INTERVAL) >= PLAIN_INTERVAL:
                self.said[step.stage] = time.monotonic()
                self.console.print(f"  {text}", markup=False, soft_wrap=True)

    def on_end(self, outcome: Outcome) -> None:
        """Show how a stage ended."""
        how = "from the store" if outcome.cached else f"{outcome.seconds:.1f} s" if outcome.artifact else ""
        with self.lock:
            if self.progress and outcome.name in self.bars:
                self.progress.remove_task(self.bars.pop(outcome.name))
            colour = COLOURS[outcome.verdict]
            self.console.print(f"[bold]{outcome.name:<11}[/] [{colour}]{outcome.verdict:<12}[/] {how:>14}  ", end="")
            self.console.print(outcome.reason, markup=False, soft_wrap=True)


def _amount(step: progress.Progress) -> str:
    if not step.total:
        return ""
    if step.unit == "B":
        return f"  {step.done / 1e9:.2f} of {step.total / 1e9:.2f} GB"
    return f"  {step.done:g} of {step.total:g} {step.unit}".rstrip()
