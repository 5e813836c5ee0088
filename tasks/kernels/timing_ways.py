"""The ways to compute an operator that are timed beside each other: backends, and the framework eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tasks.kernels import load
from tasks.kernels.acceptance.errors import Judge, compare_chunks
from tasks.kernels.acceptance.faults import Fault, brief
from tasks.kernels.acceptance.subject import widened
from tasks.kernels.definition import CompiledBackend, KernelDefinition
from tasks.kernels.load import as_tuple
from tasks.kernels.providers.adapter import Adapter
from tasks.kernels.timing_records import Contender

Tensors = tuple[torch.Tensor, ...]

EAGER, COMPILED = "eager", "compiled"


@dataclass
class Entrant:
    """A backend as it is called: with outputs of its own, or with `out` into given ones; a package's, by `adapter`."""

    backend: str
    call: Callable[..., Any]
    out: Callable[..., Any] | None = None
    adapter: Adapter | None = None


@dataclass
class Way:
    """One way to compute the operator: `run` is what is timed. The framework's have no `entrant`."""

    name: str
    run: Callable[[], Any]
    entrant: Entrant | None = None
    judge: Judge | None = None
    answered: bool = True
    seconds: list[float] = field(default_factory=list)


def enter(definition: KernelDefinition, contender: Contender, key: str | None) -> Entrant:
    """Load a backend. Raises InputError: it cannot be."""
    backend = contender.backend
    if isinstance(definition.backend(backend), CompiledBackend):
        load.load(definition, backend, Path(contender.library) if contender.library else None)
        return Entrant(backend, load.operator(definition), load.out_operator(definition, backend))
    call, adapter = load.beside(definition, backend, key)
    return Entrant(backend, call, adapter=adapter)


def backends(entrants: Sequence[Entrant], args: Sequence[Any], given: Tensors, judge: Callable[[], Judge]) -> list[Way]:
    """Each backend on `args`, into the outputs `given` where it takes any. Its errors are faults."""
    named = {f"out{index}": output for index, output in enumerate(given)}

    def runs(entrant: Entrant) -> Callable[[], Any]:
        def run() -> Any:
            try:
                return entrant.out(*args, **named) if entrant.out else entrant.call(*args)
            except Exception as error:  # whatever a kernel raises is its fault, by name
                raise Fault("raised", brief(error)) from error

        return run

    return [Way(one.backend, runs(one), one, judge()) for one in entrants]


def frameworks(definition: KernelDefinition, args: Sequence[Any], into: Tensors | None, compiled: bool) -> list[Way]:
    """Eager and, where asked, compiled; compiled into the outputs `into` where they are given."""
    baseline = definition.baseline

    def copied(arguments: Sequence[Any], outputs: Tensors) -> None:
        for output, result in zip(outputs, as_tuple(baseline(*arguments)), strict=True):
            output.copy_(result)

    ways = [Way(EAGER, lambda: baseline(*args))]
    if compiled:
        torch._dynamo.reset()
        if into is not None:
            whole = torch.compile(copied, dynamic=False)
            ways.append(Way(COMPILED, lambda: whole(args, into)))
        else:
            alone = torch.compile(baseline, dynamic=False)
            ways.append(Way(COMPILED, lambda: alone(*args)))
    return ways


def asked(way: Way, args: Sequence[Any]) -> Callable[[], Any]:
    """What is timed of a way for these arguments: of a package that has nothing for them, the reference in its place.
    A package is asked here, before the clock runs. Raises Fault: it cannot answer."""
    adapter = way.entrant.adapter if way.entrant else None
    if adapter is None:
        return way.run
    try:
        way.answered = adapter.answers(*args)
    except Exception as error:  # whatever an adapter raises is its fault, by name
        raise Fault("raised", brief(error)) from error
    return way.run if way.answered else lambda: adapter.by_reference(*args)


def check(
    definition: KernelDefinition, way: Way, args: Sequence[Any], found: Tensors, expected: Tensors, place: str
) -> None:
    """Hold what was computed while it was timed against the reference, as acceptance compares them: experts of equal
    scores in any order, FP8 codes on both sides of a tie. There is no float64 beside them, and what is allowed is told
    in last places of what is compared: `comparable` computes in float32, or in the arguments' own wider dtype.

    Raises:
        Fault: it is wrong.
    """
    forms = [[(tuple(o.shape), str(o.dtype).removeprefix("torch.")) for o in outputs] for outputs in (found, expected)]
    if forms[0] != forms[1]:
        raise Fault("structure", f"{place}: {forms[0]}, and it must be {forms[1]}")
    if definition.comparable:
        wide = tuple(widened(value, torch.float32) for value in args)
        found, expected = (as_tuple(definition.comparable(wide, outputs)) for outputs in (found, expected))
    assert way.judge is not None
    for index, (got, ours) in enumerate(zip(found, expected, strict=True)):
        compare_chunks(got, ours, way.judge, index, place)
