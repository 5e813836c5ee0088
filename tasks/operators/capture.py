"""Runs a model of transformers without data and records the operators that it calls.

A process of its own (`python -m tasks.operators.capture REQUEST ANSWER`), so that torch stays out of the
orchestrator and a crash is an answer. No weights are read, and none of the model's own code is run unless the request
says so, as it only does in a container.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers.modeling_utils import AttentionInterface

from day0.files import write_json
from tasks.operators.blocks import Blocks, replaced_forwards
from tasks.operators.formulas import operators_named
from tasks.operators.generation import generation
from tasks.operators.graph import export_graph
from tasks.operators.models import (
    UNTRACEABLE,
    Description,
    build,
    build_vision,
    cache_of,
    describe,
    describe_by_code,
    image_inputs,
    in_short,
    run,
    without_data,
)
from tasks.operators.recorder import Log, Recorder, Signature, Tally, attention_parts
from tasks.operators.records import (
    ATTENTION,
    EXPLICIT,
    IMPLICIT,
    NON_FUNCTIONAL,
    Capture,
    CapturedCall,
    CapturedOperator,
    CaptureRequest,
    Registration,
)


@dataclass
class Trace:
    """The phases of one model."""

    logs: dict[str, Log]
    traced_layers: int
    notes: list[str] = field(default_factory=list)


def capture(request: CaptureRequest) -> Capture:
    """The operators of prefill and decode, and what torch has registered for each."""
    if request.registrations_of:
        return Capture(
            registrations=registrations(set(request.registrations_of), request.dispatch_key),
            key_readable=is_readable(request.dispatch_key),
            packages={"torch": version("torch")},
        )
    model, reason = describe_by_code(request.config, request.code) if request.code else describe(request.config)
    if model is None:
        return unsupported(reason, request.dispatch_key)
    try:
        found = trace(model, request, fake=False)
    except UNTRACEABLE as on_meta:
        try:
            found = trace(model, request, fake=True)
        except UNTRACEABLE as error:
            release = version("transformers")
            reason = f"the model of transformers {release} could not be traced ({in_short(error)})"
            return unsupported(reason, request.dispatch_key)
        found.notes.append(f"traced with fake tensors, since it failed on the meta device ({in_short(on_meta)})")
    if model.vision is not None:
        trace_vision(model, found)
    forms = {form: call for log in found.logs.values() for form, call in log.forms.items()}
    parts = {
        name: {"decomposed": tuple(inner)} for log in found.logs.values() for name, inner in log.parts.items() if inner
    }
    if forms:
        parts[ATTENTION] = attention_parts(forms)
    names = {name for log in found.logs.values() for name in (*log.names, *log.before)}
    names |= {part for by_device in parts.values() for inner in by_device.values() for part in inner}
    assumed = sorted({name for log in found.logs.values() for name in log.assumed})
    if assumed:
        found.notes.append(f"what {', '.join(assumed)} read on the host was taken to be 0: there is no data")
    selected = sorted({name for log in found.logs.values() for name in log.selected})
    if selected:
        found.notes.append(f"the masks of {', '.join(selected)} were taken to choose all: there is no data")
    return Capture(
        read_as=model.model_type if model.model_type != str(request.config.get("model_type")) else None,
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
        graph=export_graph(model, request.prompt) if request.graph else None,
        source="code" if model.code else "traced",
    )


def unsupported(reason: str, key: str | None) -> Capture:
    """What torch has registered for the operators that formulas may name."""
    query = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16, device="meta")
    parts = {ATTENTION: attention_parts({"causal": ((query, query, query), {"is_causal": True})})}
    names = operators_named() | {part for inner in parts[ATTENTION].values() for part in inner}
    return Capture(
        unsupported=reason,
        registrations=registrations(set(names), key),
        parts=parts,
        key_readable=is_readable(key),
        packages={name: version(name) for name in ("torch", "transformers")},
    )


def trace(model: Description, request: CaptureRequest, *, fake: bool) -> Trace:
    """Prefill of `prompt` tokens, then one token with `context` tokens in the cache; batch 1, greedy.

    Logits of the last position only, and each with what generate() itself calls for a token. One layer of each kind is
    run, the others repeat it.
    """
    logs: dict[str, Log] = {}
    with without_data(fake):
        built = build(model)
        blocks = Blocks(built)
        ids = {"prefill": _tokens(request.prompt), "decode": _tokens(1)}
        outputs: dict[str, Any] = {}
        for phase, tokens in ids.items():
            cache = None
            if phase == "decode":
                if request.context == request.prompt:
                    cache = cache_of(outputs["prefill"])
                else:
                    cache = cache_of(_pass(built, blocks, Recorder(), _tokens(request.context), None))
            recorder = Recorder()
            outputs[phase] = _pass(built, blocks, recorder, tokens, cache)
            logs[phase] = recorder.log
            if phase == "prefill":
                traced = blocks.run
        own, note = generation(built, ids["prefill"], outputs)
        for phase, (before, after) in own.items():
            before.merge(logs[phase])
            before.merge(after)
            logs[phase] = before
    return Trace(logs, min(traced, model.layers) or model.layers, [note] if note else [])


def _pass(built: Any, blocks: Blocks, recorder: Recorder, tokens: torch.Tensor, cache: Any) -> Any:
    with torch.inference_mode(), blocks.repeating(recorder), scopes(built, recorder), recorder:
        return run(built, tokens, cache)


def trace_vision(model: Description, found: Trace) -> None:
    """Add the phase `vision`, one image through the vision tower; or a note why it could not be traced."""
    recorder = Recorder()
    try:
        with without_data(fake=False):
            tower = build_vision(model)
        blocks = Blocks(tower)
        with torch.inference_mode(), blocks.repeating(recorder), recorder:
            tower(**image_inputs(tower))
    except UNTRACEABLE as error:
        found.notes.append(f"the vision tower could not be traced ({in_short(error)})")
        return
    found.logs["vision"] = recorder.log


@contextmanager
def scopes(built: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """In the body, products in attention's core and in routed experts are summed apart, to be told from a formula's."""
    interface = AttentionInterface.get_interface

    def observed(self: Any, implementation: str, default: Any) -> Any:
        function = interface(self, implementation, default)

        def within(*args: Any, **kwargs: Any) -> Any:
            with recorder.scope("attention"):
                return function(*args, **kwargs)

        return within

    def expert(forward: Any) -> Any:
        def within(*args: Any, **kwargs: Any) -> Any:
            with recorder.scope("experts"):
                return forward(*args, **kwargs)

        return within

    experts = [m for name, m in built.named_modules() if name.endswith(".experts")]
    with (
        replaced_forwards([(module, expert(module.forward)) for module in experts]),
        patch.object(AttentionInterface, "get_interface", observed),
    ):
        yield


def _tokens(count: int) -> torch.Tensor:
    return torch.zeros(1, count, dtype=torch.long)


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


def registrations(names: set[str], key: str | None) -> dict[str, Registration]:
    """What torch has for each operator, and for the out= overloads that structured ones compute through."""
    delegates = structured_delegates()
    keys = sorted({"CPU", IMPLICIT, EXPLICIT, NON_FUNCTIONAL} | ({key} if key else set()))
    known = set(torch._C._dispatch_get_all_op_names())
    names = names | {delegates[name] for name in names if name in delegates}
    return {
        name: Registration(
            exists=name in known,
            keys=tuple(k for k in keys if name in known and has_kernel(name, k)),
            delegate=delegates.get(name),
        )
        for name in sorted(names)
    }


def is_readable(key: str | None) -> bool:
    """Whether this build of torch has kernels for a dispatch key at all, so that one not found is one not there."""
    return key is None or has_kernel("aten::mm.out", key)


def has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def structured_delegates() -> dict[str, str]:
    """Structured operator → the out= overload with its kernel, from the declarations that torch ships."""
    declared = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    found, name = {}, ""
    # Two keys of 2,600 entries: reading them as YAML would take seconds.
    for line in declared.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"- func: ([\w.]+)\(", line):
            name = match[1]
        elif match := re.match(r"  structured_delegate: ([\w.]+)", line):
            found[f"aten::{name}"] = f"aten::{match[1]}"
    return found


def main(request: Path, answer: Path) -> None:
    """Answer a request file with a file."""
    asked = CaptureRequest.model_validate_json(request.read_bytes())
    for module in asked.modules:
        importlib.import_module(module)
    write_json(answer, capture(asked).to_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
