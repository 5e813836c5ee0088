"""An adapter as an operator's implementation: what the package has nothing for is computed as the reference does.

Imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from day0.errors import InputError
from tasks.kernels.definition import KernelDefinition, PackageBackend
from tasks.kernels.modules import function_of, load_module


@dataclass
class Calls:
    """How many calls an adapter has answered, and which it had nothing for."""

    answered: int = 0
    declined: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        return {"answered": self.answered, "declined": dict(self.declined)}


def adapted(definition: KernelDefinition, backend: str) -> tuple[Callable[..., Any], Calls]:
    """The adapter's function with the operator's arguments, and its count of calls.

    Raises:
        InputError: the adapter cannot be imported, or lacks `run` or `declines`.
    """
    spec = definition.backend(backend)
    if not isinstance(spec, PackageBackend):
        raise InputError(f"the {backend} backend of {definition.name} calls no package")
    module = load_module(definition.folder / spec.module)
    run, declines, calls = function_of(module, "run"), function_of(module, "declines"), Calls()

    def call(*args: Any) -> Any:
        if why := declines(*args):
            calls.declined[str(why)] += 1
            return _by_reference(definition, args)
        calls.answered += 1
        return run(*args)

    return call, calls


def _by_reference(definition: KernelDefinition, args: tuple[Any, ...]) -> Any:
    outputs = definition.reference(*args)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    if definition.schema.mutates:
        written = [value for value, about in zip(args, definition.arguments, strict=True) if about.mutated]
        for value, output in zip(written, outputs, strict=True):
            value.copy_(output)
        return None
    made = tuple(output.contiguous() for output in outputs)
    return made[0] if len(made) == 1 else made
