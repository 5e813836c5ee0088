"""A model whose type the library lacks, traced as one that it has and that resembles it: only where both are the same
in parameters, layers and work, and never as more than a resemblance."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from day0.architecture.resemblance import recognise
from day0.architecture.structure import Structure
from day0.architecture.work import CLASS_OF_KIND
from day0.config import read_yaml
from day0.errors import InputError
from tasks.operators.corrections import corrections, off_by
from tasks.operators.records import Capture, Resembling

#: How far a model may be off in work, by each phase, and in parameters.
MOST_OFF = 0.01
MOST_OFF_PARAMETERS = 0.001


def resembling(config: Mapping[str, Any]) -> tuple[Resembling, ...]:
    """Types that a model may be traced as where the library lacks its own, the likeliest first: a table's, the type of
    its language model, and those of the family that by its config alone explains every size."""
    found: list[Resembling] = []
    own = str(config.get("model_type"))
    if known := _table().get(own):
        found.append(Resembling(model_type=known["as"], because=known["because"].strip()))
    text = config.get("text_config")
    if isinstance(text, Mapping) and isinstance(text.get("model_type"), str):
        because = "it is the type that its config names for its language model"
        found.append(Resembling(model_type=text["model_type"], because=because))
    try:
        recognised = recognise(config)
    except InputError:
        return tuple(found)
    if recognised.evidence:
        found += [Resembling(model_type=t, because=recognised.evidence) for t in recognised.family.model_types]
    return tuple(found)


def differs(structure: Structure | None, capture: Capture, passes: Mapping[str, tuple[int, int]]) -> str | None:
    """Why what was traced is not the model that the config describes; None: layers, parameters and work agree."""
    if structure is None:
        return "no family describes the model to hold it against"
    if capture.layers != structure.layers:
        return f"it has {capture.layers} layers, and the model {structure.layers}"
    parameters = sum(group.elements for group in structure.groups if group.kind in CLASS_OF_KIND)
    if abs(capture.parameters / parameters - 1) > MOST_OFF_PARAMETERS:
        return f"it has {capture.parameters:,} parameters, and the model {parameters:,}"
    corrected = corrections(structure, capture, passes)
    flops = {
        name: sum(o.flops or 0 for o in capture.phases[name]) + sum(c.flops for c in corrected.get(name, ()))
        for name in passes
    }
    off = off_by(structure, flops, passes)
    name = max(off, key=lambda phase: abs(off[phase]))
    if abs(off[name]) > MOST_OFF:
        return f"its work in {name} is {abs(off[name]):.1%} off that of the model's family"
    return None


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(Path(__file__).with_name("resembling.yaml"))
    return table
