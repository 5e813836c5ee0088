"""One layer of each kind is run; the layers like it repeat what it called.

Layers are alike where they have the same modules, sizes and settings by what was built, and are called with arguments
of the same shapes. So nothing has to be known of a model's layers, and nothing of its config is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tasks.operators.recorder import Log, Recorder


class Blocks:
    """The stacks of a model, whose layers are numbered by kind."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.layers = [layer for stack in _stacks(model) for layer in stack]
        self.kinds = {id(layer): _kind(layer) for layer in self.layers}
        self.run = 0
        """Layers run in the last pass."""

    @contextmanager
    def repeating(self, recorder: Recorder) -> Iterator[None]:
        """In the body, one pass of the model runs a layer of each kind only."""
        done: dict[tuple[str, str], tuple[Log, Any]] = {}

        def replaced(layer: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run_once(*args: Any, **kwargs: Any) -> Any:
                key = (self.kinds[id(layer)], _describe((args, kwargs)))
                if key in done:
                    log, output = done[key]
                    recorder.log.merge(log)
                    return output
                with recorder.section() as log:
                    output = forward(*args, **kwargs)
                done[key] = (log, output)
                return output

            return run_once

        with replaced_forwards([(layer, replaced(layer, layer.forward)) for layer in self.layers]):
            yield
        self.run = len(done)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """In the body, the layers that are like one before them pass on what they are given, and do nothing."""
        seen: set[tuple[str, str]] = set()

        def replaced(layer: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            def run_once(*args: Any, **kwargs: Any) -> Any:
                key = (self.kinds[id(layer)], _describe((args, kwargs)))
                if key in seen:
                    hidden = args[0] if args else kwargs["hidden_states"]
                    return (hidden, *outputs[key][1:]) if isinstance(outputs[key], tuple) else hidden
                seen.add(key)
                outputs[key] = forward(*args, **kwargs)
                return outputs[key]

            return run_once

        outputs: dict[tuple[str, str], Any] = {}
        with replaced_forwards([(layer, replaced(layer, layer.forward)) for layer in self.layers]):
            yield
        self.run = len(seen)


@contextmanager
def replaced_forwards(forwards: list[tuple[torch.nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """In the body, modules compute by other functions."""
    try:
        for module, forward in forwards:
            module.forward = forward
        yield
    finally:
        for module, _ in forwards:
            vars(module).pop("forward", None)


def _stacks(module: torch.nn.Module) -> Iterator[torch.nn.ModuleList]:
    """The lists of modules that stand in no other one."""
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList):
            yield child
        else:
            yield from _stacks(child)


def _kind(layer: torch.nn.Module) -> str:
    def settings(module: torch.nn.Module) -> list[tuple[str, Any]]:
        return sorted((k, v) for k, v in vars(module).items()
                      if k not in ("layer_idx", "training") and isinstance(v, int | float | str | None))  # fmt: skip

    modules = [(name, type(m).__qualname__, settings(m)) for name, m in layer.named_modules()]
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    return repr((modules, [(name, tuple(t.shape), t.dtype) for name, t in tensors]))


def _describe(value: Any) -> str:
    """Arguments by their shapes; of objects such as a cache the class."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_describe(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_describe(item) for item in value) + "]"
    return repr(value) if isinstance(value, bool | int | float | str | None) else type(value).__qualname__
