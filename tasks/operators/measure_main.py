"""Runs a model's operators on a device and compares them with float64 on the CPU.

A process of its own (`python -m tasks.operators.measure_main REQUEST`): an operator may end it. What it has measured it
prints as it goes, a line of JSON each, before it begins with the next; what is begun is named first.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from tasks.operators.bench import Bench, Tried, Unmeasurable
from tasks.operators.calls import Call
from tasks.operators.measure import MeasureRequest
from tasks.operators.records import EXPLICIT, IMPLICIT, Measured
from tasks.operators.registrations import registrations
from tasks.operators.written import Unreadable, read_call

#: What a call may raise while inputs are made for it that is not what an operator needs, as a release's own code may
#: have written it.
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def read_calls(request: MeasureRequest) -> tuple[dict[str, list[Call]], dict[str, str]]:
    """Calls by overload, and of what has none that can be run why."""
    calls: dict[str, list[Call]] = {}
    reasons: dict[str, str] = {}
    for written in request.calls:
        try:
            calls.setdefault(written.overload, []).append(read_call(written, foreign=request.foreign))
        except Unreadable as error:
            reasons[written.overload] = str(error)
    return {n: its for n, its in calls.items() if its}, {n: why for n, why in reasons.items() if not calls.get(n)}


def judge(name: str, tried: Tried, silent: bool) -> Measured:
    """`silent`: nothing is registered that could have computed it on the device."""
    falls_back = bool(tried.runs) and (tried.warned or silent)
    seen = [
        *tried.errors[:1],
        *tried.wrong[:1],
        *(() if tried.errors else tried.other_errors[:1]),
    ]
    if falls_back:
        how = "with a warning" if tried.warned else "without a word: no kernel is registered"
        seen.insert(0, f"runs on the CPU, {how}")
    return Measured(
        overload=name,
        works=bool(tried.runs) and not tried.errors and not tried.wrong,
        wrong=bool(tried.wrong),
        falls_back=falls_back,
        detail="; ".join(seen) or f"right in {tried.runs} cases{', of operands cut in size' if tried.cut else ''}",
    )


def main(request: Path) -> None:
    """Answer a request file on standard output."""
    asked = MeasureRequest.model_validate_json(request.read_bytes())
    for module in asked.modules:
        importlib.import_module(module)
    torch.set_warn_always(True)
    bench = Bench(asked.device, asked.seed)
    torch.empty(1).to(bench.device)
    calls, unread = read_calls(asked)
    for name, reason in unread.items():
        say({"unmeasured": name, "reason": reason})
    say({"rates": bench.rates(asked.dtype)})
    registered = registrations(set(calls), bench.key)
    for name, its in sorted(calls.items()):
        if name in asked.skip:
            continue
        say({"begin": name})
        signal.alarm(asked.most_seconds)
        try:
            with torch.no_grad():
                tried = bench.try_all(its, asked.dtype)
        except Unmeasurable as error:
            say({"unmeasured": name, "reason": str(error)})
            continue
        except MALFORMED as error:
            say({"unmeasured": name, "reason": f"no inputs could be made for it ({type(error).__name__}: {error})"})
            continue
        finally:
            signal.alarm(0)
        judged = judge(name, tried, _silent(registered, name, bench.key))
        say({"measured": judged.to_json(), "times": tried.times})
    say({"end": True})


def _silent(registered: dict[str, Any], name: str, key: str) -> bool:
    its = registered[name]
    own = {key, EXPLICIT, IMPLICIT} & set(its.keys)
    delegated = its.delegate and key in registered[its.delegate].keys
    return not own and not delegated


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
