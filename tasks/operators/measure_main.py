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
from tasks.operators.calls import Call, CallRecorder
from tasks.operators.capture import registrations, trace
from tasks.operators.measure import MeasureRequest
from tasks.operators.models import UNTRACEABLE, describe
from tasks.operators.recorder import attention_parts
from tasks.operators.records import EXPLICIT, IMPLICIT, CaptureRequest, Measured


def record(request: MeasureRequest) -> dict[str, list[Call]]:
    """The model's calls by overload.

    Raises:
        Unmeasurable: transformers has no such model.
    """
    model, reason = describe(request.config)
    if model is None:
        raise Unmeasurable(reason)
    lengths = CaptureRequest(config=request.config, prompt=request.prompt, context=request.context, dispatch_key=None)
    recorder = CallRecorder()
    try:
        with recorder:
            found = trace(model, lengths, fake=False)
    except UNTRACEABLE:
        recorder = CallRecorder()
        with recorder:
            found = trace(model, lengths, fake=True)
    names = {name for log in found.logs.values() for name in log.names}
    forms = {form: call for log in found.logs.values() for form, call in log.forms.items()}
    names |= set(attention_parts(forms)["decomposed"]) if forms else set()
    return {name: list(recorder.calls[name].values()) for name in sorted(names) if name in recorder.calls}


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
    try:
        calls = record(asked)
    except Unmeasurable as error:
        say({"unsupported": str(error)})
        return
    dtype = str(dtype_of(asked)).removeprefix("torch.")
    say({"rates": bench.rates(dtype)})
    registered = registrations(set(calls), bench.key)
    for name, its in calls.items():
        if name in asked.skip:
            continue
        say({"begin": name})
        signal.alarm(asked.most_seconds)
        try:
            with torch.no_grad():
                tried = bench.try_all(its, dtype)
        except Unmeasurable as error:
            say({"unmeasured": name, "reason": str(error)})
            continue
        finally:
            signal.alarm(0)
        judged = judge(name, tried, _silent(registered, name, bench.key))
        say({"measured": judged.to_json(), "times": tried.times})
    say({"end": True})


def dtype_of(request: MeasureRequest) -> torch.dtype:
    model, _ = describe(request.config)
    return model.dtype if model else torch.bfloat16


def _silent(registered: dict[str, Any], name: str, key: str) -> bool:
    its = registered[name]
    own = {key, EXPLICIT, IMPLICIT} & set(its.keys)
    delegated = its.delegate and key in registered[its.delegate].keys
    return not own and not delegated


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
