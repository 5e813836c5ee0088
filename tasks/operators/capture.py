"""Runs a model of transformers without data and records the operators that it calls.

A process of its own (`python -m tasks.operators.capture REQUEST ANSWER`), so that torch stays out of the
orchestrator and a crash is an answer. No weights are read, and none of the model's own code is run unless the request
says so, as it only does in a container.
"""

from __future__ import annotations

import importlib
import resource
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from day0.files import write_json
from tasks.operators.calls import MOST_CALLS, Call, Kept, merge
from tasks.operators.formulas import operators_named
from tasks.operators.graph import export_graph
from tasks.operators.models import (
    UNTRACEABLE,
    Description,
    describe,
    describe_by_code,
    in_short,
)
from tasks.operators.recorder import Log, Signature, Tally, attention_calls, attention_parts
from tasks.operators.records import (
    ATTENTION,
    Capture,
    CapturedCall,
    CapturedOperator,
    CaptureRequest,
    WrittenCall,
)
from tasks.operators.registrations import is_readable, registrations
from tasks.operators.support.composites import parts_of
from tasks.operators.tracing import Trace, trace_all
from tasks.operators.written import write_calls

#: Bytes that this process may allocate; a model of 400 layers takes 1 GiB.
MOST_MEMORY = 8 << 30

#: Calls of an overload that are kept of a vision tower, beside those of the language model.
MOST_OF_VISION = 3


def capture(request: CaptureRequest) -> Capture:
    """The operators of prefill and decode, and what torch has registered for each."""
    if request.registrations_of:
        return Capture(
            registrations=registrations(set(request.registrations_of), request.dispatch_key),
            key_readable=is_readable(request.dispatch_key),
            packages={"torch": version("torch")},
        )
    if request.code:
        model, reason = describe_by_code(request.config, request.code)
    else:
        model, reason = describe(request.config, request.resembling)
    if model is None:
        return unsupported(reason, request.dispatch_key)
    try:
        found = trace_all(model, request)
    except UNTRACEABLE as error:
        reason = f"the model of transformers {version('transformers')} could not be traced ({in_short(error)})"
        if model.resembles:
            reason = (
                f"transformers {version('transformers')} does not know the model type "
                f"{request.config.get('model_type')!r}, and the {model.model_type} that it resembles could not be "
                f"traced with its config ({in_short(error)})"
            )
        return unsupported(reason, request.dispatch_key)
    calls, unwritten = calls_to_measure(model, request, found)
    forms = {form: call for log in found.logs.values() for form, call in log.forms.items()}
    parts = {
        name: {"decomposed": tuple(inner)} for log in found.logs.values() for name, inner in log.parts.items() if inner
    }
    if forms:
        parts[ATTENTION] = attention_parts(forms)
    names = {name for log in found.logs.values() for name in (*log.names, *log.before)}
    names |= {part for by_device in parts.values() for inner in by_device.values() for part in inner}
    if model.resembles:  # formulas tell instead where the likeness does not hold
        names |= operators_named()
    names |= parts_of(names)
    assumed = sorted({name for log in found.logs.values() for name in log.assumed})
    if assumed:
        found.notes.append(f"what {', '.join(assumed)} read on the host was taken to be 0: there is no data")
    selected = sorted({name for log in found.logs.values() for name in log.selected})
    if selected:
        found.notes.append(f"the masks of {', '.join(selected)} were taken to choose all: there is no data")
    return Capture(
        read_as=model.model_type if model.model_type != str(request.config.get("model_type")) else None,
        resembles=model.resembles,
        parameters=found.parameters,
        phases={phase: captured(log) for phase, log in found.logs.items()},
        before={phase: whole(log) for phase, log in found.logs.items()},
        scopes={phase: dict(log.scopes) for phase, log in found.logs.items()},
        notes=tuple(found.notes),
        registrations=registrations(names, request.dispatch_key),
        parts=parts,
        key_readable=is_readable(request.dispatch_key),
        layers=model.layers,
        traced_layers=found.traced_layers,
        dtype=str(model.dtype).removeprefix("torch."),
        packages={name: version(name) for name in ("torch", "transformers")},
        calls=calls,
        unwritten=unwritten,
        graph=export_graph(model, request.prompt) if request.graph else None,
        source="code" if model.code else "traced",
    )


def unsupported(reason: str, key: str | None) -> Capture:
    """What torch has registered for the operators that formulas may name."""
    query = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16, device="meta")
    parts = {ATTENTION: attention_parts({"causal": ((query, query, query), {"is_causal": True})})}
    names = {*operators_named(), *(part for inner in parts[ATTENTION].values() for part in inner)}
    return Capture(
        unsupported=reason,
        registrations=registrations(names | parts_of(names), key),
        parts=parts,
        key_readable=is_readable(key),
        packages={name: version(name) for name in ("torch", "transformers")},
    )


def calls_to_measure(
    model: Description, request: CaptureRequest, traced: Trace
) -> tuple[tuple[WrittenCall, ...], dict[str, str]]:
    """Calls at the lengths to measure at, where they are asked for, and why those of an overload are not among them."""
    if request.calls_at is None:
        return (), {}
    prompt, context = request.calls_at
    try:
        found = trace_all(model, request.model_copy(update={"prompt": prompt, "context": context}))
    except UNTRACEABLE as error:
        why = f"the model could not be traced at {prompt} tokens to have its calls ({in_short(error)})"
        return (), {name: why for log in traced.logs.values() for name in log.names}
    return write_calls(calls_of(found))


def calls_of(found: Trace) -> dict[str, list[Call]]:
    """Calls of each overload in all phases; what attention becomes among them."""
    kept: Kept = {}
    for name, log in found.logs.items():
        merge(kept, log.kept, MOST_CALLS + (MOST_OF_VISION if name == "vision" else 0))
    forms = {form: call for log in found.logs.values() for form, call in log.forms.items()}
    merge(kept, attention_calls(forms))
    return {name: list(its.values()) for name, its in sorted(kept.items())}


def captured(log: Log) -> tuple[CapturedOperator, ...]:
    """Overloads after dispatch by first use, each with its calls by signature."""
    calls: dict[str, list[tuple[Signature, Tally]]] = {}
    for (name, signature), tally in log.after.items():
        calls.setdefault(name, []).append((signature, tally))
    return tuple(
        _operator(name, tallies, tuple(_call(signature, tally) for signature, tally in tallies))
        for name, tallies in calls.items()
    )


def whole(log: Log) -> tuple[CapturedOperator, ...]:
    """Overloads before dispatch, by first use."""
    return tuple(
        CapturedOperator(name=name, calls=tally.calls, flops=tally.cost.flops, bytes=tally.cost.bytes)
        for name, tally in log.before.items()
    )


def _operator(
    name: str, tallies: list[tuple[Signature, Tally]], by_signature: tuple[CapturedCall, ...]
) -> CapturedOperator:
    total = Tally()
    for _, tally in tallies:
        total = total.plus(tally)
    return CapturedOperator(
        name=name, calls=total.calls, flops=total.cost.flops, bytes=total.cost.bytes, by_signature=by_signature
    )


def _call(signature: Signature, tally: Tally) -> CapturedCall:
    inputs, outputs = signature
    floating = (t.dtype for t in (*inputs, *outputs) if t.dtype.startswith(("float", "bfloat", "complex")))
    return CapturedCall(
        inputs=inputs,
        outputs=outputs,
        dtype=next(floating, None),
        calls=tally.calls,
        flops=tally.cost.flops,
        bytes=tally.cost.bytes,
    )


def main(request: Path, answer: Path) -> None:
    """Answer a request file with a file."""
    asked = CaptureRequest.model_validate_json(request.read_bytes())
    # What a hostile config makes the library allocate ends here, and not with the machine.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    for module in asked.modules:
        importlib.import_module(module)
    write_json(answer, capture(asked).to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
