"""Measured support: each operator of a model run on the device itself, as the model calls it, and compared."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from day0 import home, process
from day0.artifacts.base import Frozen
from day0.errors import EvidenceMissing
from day0.files import write_json
from day0.progress import report
from tasks.operators.records import Capture, Measured, WrittenCall

#: Lengths at which operators are measured: odd, so that a kernel's tail is used, and short, so that float64 is quick.
PROMPT, CONTEXT = 17, 33

#: Of a device on which more operators end the process than this, nothing is learnt by going on.
MOST_DEATHS = 10

#: A call is slow that takes so many times what it would at the device's own rates.
SLOW = 20

#: An operator that does not end in so many seconds does not work.
MOST_SECONDS = 120


class MeasureRequest(Frozen):
    """What the measuring process is asked: a model's calls, and the device to make them on."""

    calls: tuple[WrittenCall, ...]
    dtype: str
    """The model's."""
    foreign: bool = False
    """The calls were recorded of code that a release ships."""
    device: str
    modules: tuple[str, ...] = ()
    """Imported first: they bring the device."""
    skip: tuple[str, ...] = ()
    """Overloads that have been measured already, or ended the process."""
    seed: int = 0
    most_seconds: int = MOST_SECONDS


class Timed(NamedTuple):
    """One call as the model makes it."""

    seconds: float
    bytes: float
    flops: float
    words: str


@dataclass
class Measurement:
    """What a device did with a model's operators."""

    measured: dict[str, Measured] = field(default_factory=dict)
    unmeasured: dict[str, str] = field(default_factory=dict)
    """Overloads that could not be tried, and why: nothing is known of them."""
    times: dict[str, list[Timed]] = field(default_factory=dict)
    out_of_time: bool = False
    """The limit was reached before all were tried."""
    rates: tuple[float, float] = (0.0, 0.0)
    """Seconds that the device takes for a byte, copying, and for a FLOP, multiplying matrices; 0 where it cannot."""


def measure(
    capture: Capture,
    device: str,
    *,
    modules: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    seed: int = 0,
    most_seconds: int = MOST_SECONDS,
    limit: float | None = None,
) -> Measurement:
    """Make a model's calls of operators on a device of this machine.

    An operator that ends the process, or does not end, does not work; the others are measured by a new process.

    Args:
        capture: with calls, recorded at (PROMPT, CONTEXT).
        device: torch's name of it, such as `cuda` or `npu:0`.
        modules: what to import first, such as torch_npu.
        env: variables to add to the environment.
        most_seconds: that one operator may take.
        limit: seconds for all; what was measured until then is the answer.

    Raises:
        EvidenceMissing: torch is not installed, or nothing could be measured: no such device here, or no calls.
        StageTimeout, Cancelled: the stage's time was up.
    """
    if not capture.calls:
        why = next(iter(capture.unwritten.values()), "no call of one was recorded")
        raise EvidenceMissing(f"operators were not measured on {device}: {why}")
    lacking = [name for name in ("torch", *modules) if not _installed(name)]
    if lacking:
        raise EvidenceMissing(f"operators cannot be measured on {device}: {', '.join(lacking)} not installed here")
    found = Measurement(unmeasured=dict(capture.unwritten))
    request = MeasureRequest(
        calls=capture.calls,
        dtype=capture.dtype,
        foreign=capture.source == "code",
        device=device,
        modules=modules,
        seed=seed,
        most_seconds=most_seconds,
    )
    try:
        with process.within(limit, "measuring"):
            _measure_all(request, env or {}, found)
    except process.TimedOut:
        found.out_of_time = True
    if not found.measured:
        raise EvidenceMissing(f"operators were not measured on {device}: the process gave no answer")
    for name, why in slow_calls(found).items():
        its = found.measured[name]
        detail = why if its.works and not its.falls_back else f"{its.detail}; {why}"
        found.measured[name] = its.model_copy(update={"slow": True, "detail": detail})
    return found


def _measure_all(request: MeasureRequest, env: Mapping[str, str], found: Measurement) -> None:
    """Fill `found`, by a new process after each death.

    Raises:
        EvidenceMissing: the device is not here, or too many operators end the process.
    """
    deaths = 0
    while True:
        ended = _Answer(found)
        try:
            _run(request.model_copy(update={"skip": (*found.measured, *found.unmeasured)}), env, ended)
        except process.ProcessFailed as error:
            if ended.begun is None:
                raise EvidenceMissing(f"operators cannot be measured on {request.device}: {error}") from error
            deaths += 1
            if deaths > MOST_DEATHS:
                raise EvidenceMissing(
                    f"operators cannot be measured on {request.device}: {deaths} of them ended the process, last "
                    f"{ended.begun}: {_death(error)}"
                ) from error
            found.measured[ended.begun] = Measured(overload=ended.begun, works=False, detail=_death(error))
            continue
        if not ended.ended:
            raise EvidenceMissing(f"operators were not measured on {request.device}: the process gave no answer")
        return


def slow_calls(found: Measurement) -> dict[str, str]:
    """Overloads with a call that takes many times what it would at the device's own rates, and that call in words."""
    timed = {name: times for name, times in found.times.items() if times}
    if not timed:
        return {}
    launch = median(min(t.seconds for t in times) for times in timed.values())
    byte, flop = found.rates
    slow = {}
    for name, times in timed.items():
        ratio, worst = max((t.seconds / (launch + t.bytes * byte + t.flops * flop), t) for t in times)
        if ratio > SLOW:
            slow[name] = (
                f"slow: {worst.words} takes {worst.seconds:.2g} s, {ratio:.0f} times what it would at the device's own "
                "rates of launching, copying and multiplying"
            )
    return slow


class _Answer:
    """Reads the lines of the measuring process."""

    def __init__(self, found: Measurement) -> None:
        self.found = found
        self.begun: str | None = None
        self.ended = False

    def line(self, text: str) -> None:
        try:
            said = json.loads(text)
        except ValueError:
            return  # printed by torch, a vendor's library, or the operator
        match said:
            case {"begin": str(name)}:
                self.begun = name
                report(f"measuring {name}")
            case {"rates": [float(byte), float(flop)]}:
                self.found.rates = (byte, flop)
            case {"measured": dict(value), "times": list(times)}:
                its = Measured.model_validate(value)
                self.found.measured[its.overload] = its
                self.found.times[its.overload] = [Timed(*t) for t in times]
                self.begun = None
            case {"unmeasured": str(name), "reason": str(reason)}:
                self.found.unmeasured[name] = reason
                self.begun = None
            case {"end": True}:
                self.ended = True


def _run(request: MeasureRequest, env: Mapping[str, str], answer: _Answer) -> None:
    with tempfile.TemporaryDirectory(prefix="day0-measure-") as folder:
        asked = Path(folder, "request.json")
        write_json(asked, request.to_json())
        command = [sys.executable, "-m", "tasks.operators.measure_main", str(asked)]
        # Threads that spin while they wait take a hundred times as long where there are more of them than free cores.
        own = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        process.run(command, cwd=home.PROJECT, env=os.environ | own | dict(env), on_line=answer.line)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _death(error: process.ProcessFailed) -> str:
    if error.returncode == -signal.SIGALRM:
        return "it did not end, and was stopped"
    how = f"by signal {-error.returncode}" if error.returncode < 0 else f"with code {error.returncode}"
    last = [line for line in error.tail if line.strip() and not line.startswith("{")]
    return f"it ended the process {how}" + (f": {last[-1].strip()[:200]}" if last else "")
