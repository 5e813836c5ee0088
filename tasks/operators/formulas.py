"""Operators of a model that the library does not know, from the work that its family's formulas count."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from day0.architecture.attention.base import Held
from day0.architecture.parallel import Sizes
from day0.architecture.stored import stored_from_config
from day0.architecture.structure import Structure
from day0.architecture.work import CLASS_OF_KIND, RankWork, Step, WorkModel
from day0.config import read_yaml
from tasks.operators.records import Capture, CapturedOperator
from tasks.operators.settings import OperatorSettings

#: Bytes of an element of what is cached: bfloat16, and float32 for recurrent states.
BYTES_OF: Mapping[Held, float] = {"cache": 2, "index": 2, "state": 4, "conv": 2}


def operators_named() -> frozenset[str]:
    """Every operator that the table names."""

    def named(node: Mapping[str, Any]) -> Iterator[str]:
        if "main" in node or "beside" in node:
            yield from (node["main"],) if "main" in node else ()
            yield from node.get("beside", {})
        else:
            for child in node.values():
                yield from named(child)

    return frozenset(named(_classes()))


def from_formulas(structure: Structure, settings: OperatorSettings, capture: Capture, why: str) -> Capture:
    """A capture of the operators that a model's classes of work need; `capture` says what torch has registered, and
    `why` why the model was not traced."""
    work = WorkModel(structure, stored_from_config(structure, None), BYTES_OF)
    passes = {"prefill": (settings.prompt, 0), "decode": (1, settings.context)}
    return Capture(
        source="formulas",
        why=why,
        phases={phase: _phase(structure, work, *span) for phase, span in passes.items()},
        registrations=capture.registrations,
        parts=capture.parts,
        key_readable=capture.key_readable,
        layers=structure.layers,
        dtype="bfloat16",
        packages=capture.packages,
    )


def _phase(structure: Structure, work: WorkModel, new: int, past: int) -> tuple[CapturedOperator, ...]:
    """Every class's main operator with its work, and those beside it, summed by name in the order of first use."""
    rank = work.rank_work(Step(1, new, past), Sizes(tp=1, pp=1))
    calls: dict[str, int] = defaultdict(int)
    costs: dict[str, tuple[float, float]] = {}
    unknown: set[str] = set()

    def add(rule: Mapping[str, Any], layers: int, launches: int, flops: float, moved: float) -> None:
        if main := rule.get("main"):
            calls[main] += launches
            before = costs.get(main, (0.0, 0.0))
            costs[main] = (before[0] + flops, before[1] + moved)
        for name, each in rule.get("beside", {}).items():
            calls[name] += each * layers
            if name in _table()["views"]:
                costs[name] = (0.0, 0.0)
            else:
                unknown.add(name)

    for name, rule in _classes().items():
        if name == "attention":
            for entry in (e for e in structure.attention if not e.mtp):
                read = sum(count * BYTES_OF[held] for held, count in entry.attention.read(new, past).items())
                layers = len(entry.layers)
                add(
                    rule[entry.attention.kind], layers, layers, entry.attention.flops(new, past) * layers, read * layers
                )
        elif name in ("start", "finish"):
            add(rule, 1, 0, 0, 0)
        else:
            flops, moved, launches = _class_work(rank, name)
            if launches:
                add(rule, launches if name == "norms" else _layers_of(structure, name), launches, flops, moved)
    return tuple(
        CapturedOperator(
            name=name,
            calls=count,
            # A sum of which a part is not known is not known.
            flops=None if name in unknown else costs[name][0],
            bytes=None if name in unknown else costs[name][1],
        )
        for name, count in calls.items()
    )


def _class_work(rank: RankWork, name: str) -> tuple[float, float, int]:
    parts = [part for part in rank.classes if part.name == name]
    return sum(p.flops for p in parts), sum(p.bytes for p in parts), round(sum(p.kernels for p in parts))


def _layers_of(structure: Structure, name: str) -> int:
    """Decoder layers that have a class of work; 1 for what stands outside of them."""
    groups = [g for g in structure.groups if CLASS_OF_KIND.get(g.kind) == name and not g.mtp]
    return len({layer for group in groups for layer in group.layers or ()}) or 1


def _classes() -> dict[str, Any]:
    return {name: rule for name, rule in _table().items() if name != "views"}


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(Path(__file__).with_name("formulas.yaml"))
    return table
