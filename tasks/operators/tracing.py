"""The passes of a model without data, as a log of operators for each phase."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from transformers.modeling_utils import AttentionInterface

from tasks.operators.blocks import Blocks, replaced_forwards
from tasks.operators.generation import generation
from tasks.operators.models import (
    UNTRACEABLE,
    Description,
    build,
    build_vision,
    cache_of,
    image_inputs,
    in_short,
    run,
    without_data,
)
from tasks.operators.recorder import Log, Recorder
from tasks.operators.records import CaptureRequest


@dataclass
class Trace:
    """The phases of one model."""

    logs: dict[str, Log]
    traced_layers: int
    parameters: int
    notes: list[str] = field(default_factory=list)


def trace_all(model: Description, request: CaptureRequest) -> Trace:
    """The language model, on the meta device or, where it fails there, with fake tensors, and its vision tower."""
    try:
        found = trace(model, request, fake=False)
    except UNTRACEABLE as on_meta:
        found = trace(model, request, fake=True)
        found.notes.append(f"traced with fake tensors, since it failed on the meta device ({in_short(on_meta)})")
    if model.vision is not None:
        trace_vision(model, found)
    return found


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
    parameters = sum(p.numel() for p in built.parameters())
    return Trace(logs, min(traced, model.layers) or model.layers, parameters, [note] if note else [])


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
