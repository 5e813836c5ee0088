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


@dataclass
class Adapter:
    """A package's `run`, called only after `declines` was asked, once for each call."""

    definition: KernelDefinition
    run: Callable[..., Any]
    declines: Callable[..., Any]
    calls: Calls = field(default_factory=Calls)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args) if self.answers(*args) else self.by_reference(*args)

    def answers(self, *args: Any) -> bool:
        """Whether the package has something for a call, which is counted."""
        if why := self.declines(*args):
            self.calls.declined[str(why)] += 1
            return False
        self.calls.answered += 1
        return True

    def by_reference(self, *args: Any) -> Any:
        """What the operator returns, new and contiguous as a kernel's outputs are."""
        outputs = self.definition.reference(*args)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        if self.definition.schema.mutates:
            written = [value for value, about in zip(args, self.definition.arguments, strict=True) if about.mutated]
            for value, output in zip(written, outputs, strict=True):
                value.copy_(output)
            return None
        made = tuple(output.contiguous() for output in outputs)
        return made[0] if len(made) == 1 else made


def adapted(definition: KernelDefinition, backend: str) -> Adapter:
    """The adapter of a backend, a function with the operator's arguments.

    Raises:
        InputError: the adapter cannot be imported, or lacks `run` or `declines`.
    """
    spec = definition.backend(backend)
    if not isinstance(spec, PackageBackend):
        raise InputError(f"the {backend} backend of {definition.name} calls no package")
    module = load_module(definition.folder / spec.module)
    return Adapter(definition, function_of(module, "run"), function_of(module, "declines"))
